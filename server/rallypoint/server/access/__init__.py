"""Who calls, and whether they may: every call passes here once, when it begins."""
