//! ResourceClaimTemplate.

use corten_meta::Value;

use crate::kind::{Behaviour, Kind};

struct ResourceClaimTemplate;

pub fn kind() -> Kind {
    Kind::new("resource.k8s.io", "v1", "ResourceClaimTemplate", "resourceclaimtemplates")
        .returns_deleted()
        .behaviour(ResourceClaimTemplate)
}

impl Behaviour for ResourceClaimTemplate {
    fn rules(&self) -> &'static str {
        ".resource.v1.ResourceClaimTemplate"
    }

    fn default(&self, object: &mut Value) {
        super::default_requests(object, "/spec/spec/devices/requests");
    }
}
