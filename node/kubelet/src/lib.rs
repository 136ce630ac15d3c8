//! Pod workers, probes, volumes, status, events, the node's own API
