//! Networks: packets for addresses of the cluster that nobody holds, and hosts outside the cluster.
