"""The page of a report, report/index.html, and its figures."""
