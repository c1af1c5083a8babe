"""Use of stored vectors: the most similar pairs, nearest-neighbour indexes, clusters. Thin over faiss and scipy."""
