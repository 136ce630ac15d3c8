//! The attack suite: hostile images, registries, pods, nodes, local users and networks against a running cluster.
//!
//! Each test takes the part of one attacker, with only what that attacker has, and asserts that the attack gets nothing
//! beyond the attacker's own and that the cluster goes on. [SECURITY.md](../../../SECURITY.md) says what is promised to
//! whom.

mod images;
mod local_users;
mod networks;
mod nodes;
mod pods;
mod registries;
