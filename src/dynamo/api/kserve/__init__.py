"""The KServe v2 inference protocol over gRPC: text models as a prompt tensor, tensor models as they are."""
