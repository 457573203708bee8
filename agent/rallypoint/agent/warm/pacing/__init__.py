"""How much of the processors a standby may use while it imports beside workers."""
