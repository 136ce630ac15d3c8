//! EndpointSlice.

use crate::kind::Kind;

/// The declaration.
pub fn kind() -> Kind {
    Kind::new("discovery.k8s.io", "v1", "EndpointSlice", "endpointslices")
        .generation()
        .table("Name, AddressType, Ports, Endpoints, Age")
}
