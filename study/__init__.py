"""Studies: declare what is compared, train it, judge it, show it. ablate.py and compare.py call these files.

plan.py                  declare a study: its file and the command line become study.json
trials.py                draw the settings that each arm tries; choose the best
files.py                 read and write study.json, chosen.json and extended.json
launch.py  slurm.py      train runs: as processes; as jobs on a cluster
runs.py  publish.py      read runs from their folders; write and read small tables of them
statistics.py            the rule: intervals, verdicts, and the rows of the table
report.py  loose.py      the table of a study; the table of runs that no study declared
table.py                 show a table in a terminal, as Markdown, as JSON
page.py  figures.py      show it as a page; its charts
"""
