"""What everyone but an agent meets: each subject with its service, its messages and its waits."""
