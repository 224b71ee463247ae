"""Studies: what is compared is declared before the first run, then run, then judged.

plan.py                  declares a study: its file and the command line -> study.json
trials.py                draws the settings that are tried, and chooses among them
files.py                 study.json, chosen.json, extended.json
launch.py  slurm.py      train runs, as processes or as jobs
runs.py                  reads runs back
statistics.py            the rule: intervals and verdicts
report.py  loose.py      the table of a study; of runs that no study declared
table.py                 shows a table: in a terminal, as Markdown, as JSON
page.py  figures.py      its page; charts
publish.py               studies as small tables, for a repository
"""
