//! nf_tables over netlink: tables, chains, sets, maps and rules in one atomic batch
