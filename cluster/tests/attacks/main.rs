//! The attack suite: hostile images, registries, pods, nodes, local users and networks against a running cluster.
//!
//! Each test takes the role of one attacker, with only that attacker's means, and asserts that the attack gains nothing
//! beyond the attacker's own and that the cluster continues. [SECURITY.md](../../../SECURITY.md) has the promises.

mod images;
mod local_users;
mod networks;
mod nodes;
mod pods;
mod registries;
