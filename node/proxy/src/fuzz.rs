//! Entry points for the fuzz targets: the kernel's messages of IPVS and of links. Nothing else may use this.

use crate::ipvs::message;

/// Reads one answer as each kind that the proxy requests.
pub fn ipvs(answer: &[u8]) {
    let _ = message::read_service(answer);
    let _ = message::read_destination(answer, true);
    let _ = message::read_destination(answer, false);
    let _ = message::read_link(answer);
    let _ = message::read_link_address(answer);
}
