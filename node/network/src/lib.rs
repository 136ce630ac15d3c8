//! Pod network: addresses, bridge and veth, routes between nodes, the way out
