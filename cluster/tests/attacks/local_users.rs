//! Local users: unprivileged accounts of the host that a node runs on.
