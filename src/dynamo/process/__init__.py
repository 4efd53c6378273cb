"""What belongs to the operating system: child processes, supervision, locks and other files, threads, addresses."""
