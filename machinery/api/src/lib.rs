//! The API as data: every built-in kind, one file each, one folder a group
