"""Studies: what is compared is declared before the first run, then run, then judged."""
