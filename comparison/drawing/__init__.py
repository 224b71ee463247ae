"""What is looked at: the page of a report, report/index.html, and figures."""
