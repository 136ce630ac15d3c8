//! Cluster DNS: names of Services and pods, forwarding with a cache
