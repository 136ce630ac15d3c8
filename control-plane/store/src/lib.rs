//! A revisioned key-value store with etcd's semantics; it knows bytes, not Kubernetes
