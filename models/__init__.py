"""Model families, their shared layers, the loader, and the model that ships."""
