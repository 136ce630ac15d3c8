//! List, watch, write: over HTTPS or in process; caches, work queue, leader election, events
