//! PodTemplate.

use corten_meta::Value;
use corten_meta::field::{FieldError, Path};

use crate::kind::{Behaviour, Kind};

struct PodTemplate;

pub fn kind() -> Kind {
    Kind::new("", "v1", "PodTemplate", "podtemplates")
        .generation()
        .table(
            "Name, Containers=names(/template/spec), Images=images(/template/spec), \
             Pod Labels=labels(/template/metadata/labels)",
        )
        .returns_deleted()
        .behaviour(PodTemplate)
}

impl Behaviour for PodTemplate {
    fn default(&self, object: &mut Value) {
        super::pod_spec::default_template(object, "/template");
    }

    fn validate(&self, object: &Value) -> Vec<FieldError> {
        super::pod_validation::validate_template(&object["template"], &Path::root("template"))
    }

    fn warnings(&self, new: &Value, old: Option<&Value>) -> Vec<String> {
        let path = corten_meta::field::Path::root("template");
        crate::core::pod_warnings::of_template(new, old, "/template", &path)
    }
}
