"""Parts of the docs site other than Markdown pages."""
