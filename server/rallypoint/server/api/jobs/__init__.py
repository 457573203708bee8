"""Jobs as their readers and operators see them: answers of bounded size, and watches."""
