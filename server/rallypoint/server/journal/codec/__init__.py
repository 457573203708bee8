"""The records of a journal as protobuf messages, and back."""
