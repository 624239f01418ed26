"""Playing a workload against a server, as its clients would."""
