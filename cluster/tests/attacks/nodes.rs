//! Nodes: a machine that joined, or whoever stole its credentials, and wants more than its own pods.

mod pods_of_others;
