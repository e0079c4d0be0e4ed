"""What the docs site needs beyond its Markdown pages."""
