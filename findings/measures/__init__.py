"""What is measured of a claim: functions that conf/finding/*.yaml name."""
