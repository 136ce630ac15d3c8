//! What a kind is: its names, scope, verbs, subresources, columns and rules as data, and its logic as [`Behaviour`].
//!
//! Built-in kinds are declared with the builder, one file each; a custom resource builds the same
//! struct at run time. Handlers see only this erased form and must never name a kind.

mod builder;
mod column;
mod given;

use std::sync::Arc;

pub use column::Column;
use corten_meta::field::FieldError;
use corten_meta::quote::quote;
use corten_meta::{Object, Value};
use jiff::Timestamp;

/// The verbs of a resource that is stored and served in full, as discovery lists them.
pub const FULL_VERBS: &[&str] = &["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"];
/// The verbs of a subresource that views and writes a part of its parent.
const PART_VERBS: &[&str] = &["get", "patch", "update"];
/// The verbs of a proxy subresource: every HTTP method is let through.
const PROXY_VERBS: &[&str] = &["create", "delete", "get", "patch", "update"];

/// One resource of the API.
#[derive(Clone)]
pub struct Kind {
    pub group: String,
    pub version: String,
    pub kind: String,
    pub list_kind: String,
    pub plural: String,
    pub singular: String,
    pub short_names: Vec<String>,
    pub categories: Vec<String>,
    pub namespaced: bool,
    /// As in discovery.
    pub verbs: Vec<&'static str>,
    pub subresources: Vec<Subresource>,
    /// The type's name in the schema table, e.g. `io.k8s.api.apps.v1.Deployment`.
    pub schema: String,
    /// The columns of `kubectl get`, in the order of [`Behaviour::cells`].
    pub columns: Vec<Column>,
    /// Fields that a field selector may name, beyond `metadata.name` and `metadata.namespace`.
    pub selectable_fields: Vec<String>,
    pub storage: Storage,
    pub rules: Rules,
    /// What every request for it is warned of.
    pub deprecation: Option<std::borrow::Cow<'static, str>>,
    pub behaviour: Arc<dyn Behaviour>,
}

/// Where objects of a kind live.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Storage {
    /// Under this prefix of the store; a namespaced key is `<prefix>/<namespace>/<name>`, else `<prefix>/<name>`.
    Stored {
        prefix: String,
        /// The group and version whose form is stored, when it is not the kind's own:
        /// two versions of one resource share a prefix. [`Behaviour::to_stored`] and
        /// [`Behaviour::from_stored`] convert.
        hub: Option<(String, String)>,
    },
    /// Never stored: the answer is computed from the request (reviews, bindings).
    Virtual,
}

/// What the API server does with objects of this kind beyond the common path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rules {
    /// There is a status subresource: a write of the object leaves status alone, a write of status leaves the rest alone.
    pub has_status: bool,
    /// A write of status leaves the metadata alone too.
    pub status_keeps_metadata: bool,
    /// What of the metadata that a write of status leaves alone is not taken back but judged.
    pub status_takes: &'static [&'static str],
    /// A write of status leaves the labels alone.
    pub status_keeps_labels: bool,
    /// A write of status leaves alone who owns the object and when it goes.
    pub status_keeps_owners: bool,
    /// What a status lacks is filled in by what the spec says.
    pub status_needs_spec: bool,
    /// A writer owns the fields of the object as it was sent, also those of a part that the write then restores: custom
    /// resources, and kinds of which one version keeps in annotations what another has in spec and status.
    pub is_owned_as_sent: bool,
    /// An object gets its defaults as it is sent and as it is read; fields that a write restores stay as they are: custom
    /// resources.
    pub is_defaulted_as_sent: bool,
    /// The labels that an object lacks are those of its template, also when a write of its status takes them away.
    pub labels_from_template: bool,
    /// An apply to the status of an absent object creates it.
    pub status_apply_creates: bool,
    /// A create may bring its status along (nodes register with theirs).
    pub status_on_create: bool,
    /// What of a status a create may bring along otherwise.
    pub kept_of_new_status: &'static [&'static str],
    /// The spec is the server's to write, and nobody owns its fields.
    pub is_spec_reset: bool,
    /// `metadata.generation` starts at 1 and rises when anything but metadata and status changes.
    pub generation: bool,
    /// An empty list or map where there was none is a change too: to the generation, and to what may not change.
    pub counts_empty: bool,
    /// What is taken out because its feature is switched off is a change too, to the generation.
    pub counts_gated: bool,
    /// An update of an absent object creates it.
    pub allow_create_on_update: bool,
    /// An update without resourceVersion overwrites.
    pub allow_unconditional_update: bool,
    /// Deletion first sets deletionTimestamp and waits for the grace period (pods).
    pub graceful_delete: bool,
    /// A delete answers with the object that is gone, not with a Status.
    pub returns_deleted: bool,
    /// A delete without propagationPolicy orphans the dependents (a promise of old versions).
    pub orphan_by_default: bool,
    /// Nothing ever depends on an object of this kind: a delete asks for nothing to be done about it.
    pub is_without_dependents: bool,
    /// The first delete marks the object with the time and nothing else: no grace period, no generation.
    pub is_marked_by_time: bool,
    /// What a delete without propagationPolicy is warned of.
    pub delete_warning: Option<&'static str>,
    /// The rule of `metadata.name`.
    pub name_rule: NameRule,
    /// The column by whose number the rows of a table are sorted, before their names.
    pub rows_by: Option<usize>,
    /// What is behind its status subresource cannot be asked for as a table.
    pub status_has_no_rows: bool,
}

/// The rule a name of this kind must follow; the checks themselves are in [`crate::objectmeta`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NameRule {
    /// RFC 1123 subdomain, the rule of most kinds.
    Subdomain,
    /// The same, with the words of upstream's newer rules.
    SubdomainInBytes,
    /// RFC 1123 label.
    Label,
    /// RFC 1035 label.
    Label1035,
    /// Anything that is safe as one segment of a URL path.
    PathSegment,
    /// An IP address in canonical form.
    Ip,
    /// The kind's own `validate` judges the name.
    Own,
    /// The kind has no rule: what is asked of every name is asked when nothing else is wrong.
    None,
}

/// A path below an object of the kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subresource {
    pub name: &'static str,
    pub role: Role,
    pub verbs: Vec<&'static str>,
    /// Group, version and kind of its body, as discovery names them (group and version empty: the parent's).
    pub group: &'static str,
    pub version: &'static str,
    pub kind: String,
}

/// What a subresource does; the API server has one handler a role.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Role {
    Status,
    Scale,
    Binding,
    Eviction,
    EphemeralContainers,
    Resize,
    Finalize,
    Token,
    Approval,
    Log,
    Exec,
    Attach,
    PortForward,
    Proxy,
}

/// JSON paths (as in a CRD: `.spec.replicas`) by which the scale subresource reads and writes its parent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScalePaths {
    pub spec_replicas: String,
    pub status_replicas: String,
    /// A label selector, either as a string or as a `LabelSelector` or a plain map.
    pub selector: Option<String>,
}

/// The logic of a kind. Every hook is defaulted; all are pure.
pub trait Behaviour: Send + Sync {
    /// Why an object with fields of the right types still cannot be read, in the words of upstream's decoder.
    fn unreadable(&self, _object: &Value) -> Option<String> {
        None
    }
    /// Fills absent fields as upstream does when it decodes a request or a stored object.
    fn default(&self, _object: &mut Value) {}
    /// The same of an object that was applied.
    fn default_applied(&self, object: &mut Value) {
        self.default(object);
    }
    /// Whether upstream stores such a new object without something that it fills in when it reads it: the first write
    /// writes that, also if it changes nothing else.
    fn is_completed_when_read(&self, _object: &Value) -> bool {
        false
    }
    /// An object that is stored with something that no reader is shown, without it. Its subresources show it all.
    fn shown(&self, _stored: &[u8]) -> Option<Value> {
        None
    }
    /// Fills absent times with the time of the request, where upstream does so when it decodes a request.
    fn default_times(&self, _object: &mut Value, _now: Timestamp) {}
    /// Warnings of a new object that are told before its last step, also if it is refused.
    fn early_warnings(&self, _object: &Value) -> Vec<String> {
        Vec::new()
    }
    /// The last step before validation of a create: metadata is complete (name, uid, generation), status is cleared.
    fn prepare_create(&self, _object: &mut Value) {}
    /// The same for an update: status is the old one, generation is set.
    fn prepare_update(&self, _new: &mut Value, _old: &Value) {}
    /// The same for a write to the status subresource: everything but the status is the old one.
    fn prepare_status_update(&self, _new: &mut Value, _old: &Value, _now: Timestamp) {}
    /// Errors of the object alone, without those of its metadata.
    fn validate(&self, _object: &Value) -> Vec<FieldError> {
        Vec::new()
    }
    /// The same of an object that is there already, for kinds that judge it by what it was.
    fn validate_present(&self, object: &Value, _old: &Value) -> Vec<FieldError> {
        self.validate(object)
    }
    /// Errors of a new object that an object which already is there may have.
    fn validate_create(&self, _object: &Value) -> Vec<FieldError> {
        Vec::new()
    }
    /// Errors of a new object. A kind whose own rules for new objects stand among the others tells them in their order.
    fn validate_new(&self, object: &Value) -> Vec<FieldError> {
        let mut errors = self.validate(object);
        errors.extend(self.validate_create(object));
        errors
    }
    /// Errors of the change alone: immutable fields and forbidden transitions.
    fn validate_update(&self, _new: &Value, _old: &Value) -> Vec<FieldError> {
        Vec::new()
    }
    /// Errors of a write to the status subresource.
    fn validate_status_update(&self, _new: &Value, _old: &Value) -> Vec<FieldError> {
        Vec::new()
    }
    /// Errors of a write to a subresource that changes one part of the object; the object is whole on both sides.
    fn validate_part_update(&self, _role: Role, _new: &Value, _old: &Value) -> Vec<FieldError> {
        Vec::new()
    }
    /// What is written into an object when its deletion is first asked for: what holds it, and what says so.
    fn prepare_delete(&self, _object: &mut Value, _now: Timestamp) {}
    /// What upstream writes into an object that holds nothing, beyond the zeros of its type.
    fn empty(&self, _object: &mut Value) {}
    /// The row of `kubectl get`, in the order of [`Kind::columns`].
    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        crate::cells::name_and_age(object, now)
    }
    /// Annotations that belong to the version of an object and not to the object: its row in a table has none of them.
    fn annotations_of_version(&self) -> &'static [&'static str] {
        &[]
    }
    /// Why nothing more will happen to the object, in a word and a sentence, where its row says so.
    fn completion(&self, _object: &Value) -> Option<(&'static str, &'static str)> {
        None
    }
    /// The value of a selectable field beyond `metadata.name` and `metadata.namespace`.
    fn fields(&self, _object: &Value, _field: &str) -> Option<String> {
        None
    }
    /// What is said to a client that selects by a field that cannot be selected by, when the kind has some that can.
    fn unsupported_field(&self, field: &str) -> String {
        format!("field label not supported: {field}")
    }
    /// Where the scale subresource finds its numbers.
    fn scale(&self) -> Option<ScalePaths> {
        None
    }
    /// The OpenAPI schema of a kind that the table does not know: a custom resource.
    fn structural_schema(&self) -> Option<&Value> {
        None
    }
    /// The webhook that converts between the versions of a custom resource, as its definition says it.
    fn conversion_webhook(&self) -> Option<&Value> {
        None
    }
    /// When a custom resource's definition last changed: what was stored before may lack defaults and hold unknown fields.
    fn defined_at(&self) -> u64 {
        0
    }
    /// Drops what the schema does not name; part of [`Behaviour::default`].
    fn prune(&self, _object: &mut Value) {}
    /// Warnings for the client that wrote this object.
    fn warnings(&self, _new: &Value, _old: Option<&Value>) -> Vec<String> {
        Vec::new()
    }
    /// What is wrong with an object where it is as it was, which is told and not refused; `errors` is what is refused.
    fn ratcheted(&self, _new: &Value, _old: &Value, _errors: &[FieldError]) -> Vec<String> {
        Vec::new()
    }
    /// Warnings for the client that wrote the status of this object.
    fn status_warnings(&self, _object: &Value) -> Vec<String> {
        Vec::new()
    }
    /// From this version to the stored one (see [`Storage::Stored`]).
    fn to_stored(&self, _object: &mut Value) {}
    /// From the stored version to this one.
    #[expect(clippy::wrong_self_convention, reason = "it converts an object, not the behaviour")]
    fn from_stored(&self, _object: &mut Value) {}
    /// How objects of this kind are made, where it is a read-only projection of the kind that is stored.
    fn projection(&self) -> Option<Projection> {
        None
    }
}

/// Makes the part of a stored object that a projection shows. Takes nothing over that it does not name, so that a field
/// which the stored kind gets later stays hidden.
pub type Projection = fn(&Object) -> Value;

/// A kind without logic of its own.
pub struct Plain;
impl Behaviour for Plain {}

impl Kind {
    /// A stored, namespaced resource of the core group's schema package with every verb and no subresource.
    pub fn new(group: &str, version: &str, kind: &str, plural: &str) -> Kind {
        Kind {
            group: group.to_string(),
            version: version.to_string(),
            kind: kind.to_string(),
            list_kind: format!("{kind}List"),
            plural: plural.to_string(),
            singular: kind.to_lowercase(),
            short_names: Vec::new(),
            categories: Vec::new(),
            namespaced: true,
            verbs: FULL_VERBS.to_vec(),
            subresources: Vec::new(),
            schema: schema_name(group, version, kind),
            columns: vec![Column::new("Name", "string").format("name"), Column::new("Age", "string")],
            selectable_fields: Vec::new(),
            storage: Storage::Stored { prefix: format!("/registry/{plural}"), hub: None },
            rules: Rules {
                has_status: false,
                status_keeps_metadata: false,
                status_takes: &[],
                status_keeps_labels: false,
                status_needs_spec: false,
                is_owned_as_sent: false,
                is_defaulted_as_sent: false,
                labels_from_template: false,
                status_apply_creates: false,
                status_keeps_owners: false,
                is_spec_reset: false,
                status_on_create: false,
                kept_of_new_status: &[],
                generation: false,
                counts_empty: false,
                counts_gated: false,
                allow_create_on_update: false,
                allow_unconditional_update: true,
                graceful_delete: false,
                returns_deleted: false,
                orphan_by_default: false,
                is_without_dependents: false,
                is_marked_by_time: false,
                delete_warning: None,
                name_rule: NameRule::Subdomain,
                rows_by: None,
                status_has_no_rows: false,
            },
            deprecation: None,
            behaviour: Arc::new(Plain),
        }
    }

    /// `apps/v1`, or `v1` for the core group.
    pub fn api_version(&self) -> String {
        if self.group.is_empty() { self.version.clone() } else { format!("{}/{}", self.group, self.version) }
    }

    /// Whether a CustomResourceDefinition made it: the schema table does not know it.
    pub fn is_custom(&self) -> bool {
        self.schema.is_empty()
    }

    /// The subresource of this name.
    pub fn subresource(&self, name: &str) -> Option<&Subresource> {
        self.subresources.iter().find(|s| s.name == name)
    }

    /// Why a field selector may not name this field; `None` when it may.
    pub fn selection_error(&self, field: &str) -> Option<String> {
        if self.selectable_fields.iter().any(|known| known == field) {
            return None;
        }
        // Custom resources spell theirs out, be there none.
        let has_own = self.is_custom() || !self.selectable_fields.is_empty();
        match field {
            "metadata.name" => None,
            // Kinds without namespace that spell their fields out leave it out.
            "metadata.namespace" if self.namespaced || !has_own => None,
            _ if has_own => Some(self.behaviour.unsupported_field(field)),
            _ => Some(format!(
                "{} is not a known field selector: only \"metadata.name\", \"metadata.namespace\"",
                quote(field)
            )),
        }
    }

    /// Fills absent fields: first what the schema says, then what the kind says, then the zeros that are always written.
    /// Says whether something that was given is lost by it.
    pub fn default(&self, object: &mut Value) -> bool {
        let lost = crate::schema::fill_defaults(&self.schema, object);
        self.behaviour.default(object);
        crate::schema::fill_zeros(&self.schema, object);
        lost
    }

    /// The same of an object that was applied, whose nulls stand for themselves.
    pub fn default_applied(&self, object: &mut Value) -> bool {
        let lost = crate::schema::fill_defaults(&self.schema, object);
        self.behaviour.default_applied(object);
        crate::schema::fill_zeros(&self.schema, object);
        lost
    }

    /// An object that comes from another version, as its type writes it: what is as good as absent goes.
    pub fn rewrite(&self, object: &mut Value) {
        crate::schema::fill_defaults(&self.schema, object);
        self.write_zeros(object);
    }

    /// Writes the zeros that are always written, into an object that comes from another version.
    pub fn write_zeros(&self, object: &mut Value) {
        crate::schema::fill_zeros(&self.schema, object);
    }

    /// Takes out what belongs to features that are switched off: after it is known who sent it, before it is judged.
    pub fn drop_gated(&self, object: &mut Value) {
        crate::schema::drop_gated(&self.schema, object);
    }

    /// An object of this kind that holds nothing, as upstream writes it.
    pub fn empty(&self) -> Value {
        let mut object = crate::schema::empty(&self.schema);
        object["apiVersion"] = self.api_version().into();
        object["kind"] = self.kind.as_str().into();
        self.behaviour.empty(&mut object);
        object
    }

    /// Writes what is empty as it comes back from upstream's store. The last step before an object is stored or shown.
    pub fn settle(&self, object: &mut Value) {
        crate::schema::settle(&self.schema, object);
    }

    /// The object as it would be stored.
    pub fn settled(&self, object: &Value) -> Value {
        let mut stored = object.clone();
        self.settle(&mut stored);
        stored
    }

    /// Errors as upstream words them, with the structs they show as it prints them.
    fn shown(&self, mut errors: Vec<FieldError>) -> Vec<FieldError> {
        crate::schema::print_values(&self.schema, &mut errors);
        errors
    }

    /// Every error of a new object: its metadata's and its own.
    pub fn validate(&self, object: &Value) -> Vec<FieldError> {
        self.shown(crate::update::validate_new(self, object))
    }

    /// Every error of an update: the metadata's, the new object's and the change's.
    pub fn validate_update(&self, new: &Value, old: &Value) -> Vec<FieldError> {
        self.validate_given_update(new, new, old)
    }

    /// Every error of a write to the status subresource.
    pub fn validate_status_update(&self, new: &Value, old: &Value) -> Vec<FieldError> {
        self.validate_given_status_update(new, new, old)
    }

    /// Every error of a write to a subresource that changes one part of the object.
    pub fn validate_part_update(&self, role: Role, new: &Value, old: &Value) -> Vec<FieldError> {
        let rule = |object: &Value| self.behaviour.validate_part_update(role, object, old);
        let before = || [self.behaviour.validate_new(old), rule(old)].concat();
        let own = self.unforgiven(rule(new), [new, old], before);
        let metadata = match role {
            Role::Approval => return self.shown(crate::update::validate_status(self, new, old, &own)),
            Role::Finalize => crate::update::validate_metadata_once(self, new, old),
            _ => crate::update::validate_metadata(self, new, old),
        };
        self.shown([metadata, own].concat())
    }
}

impl std::fmt::Debug for Kind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Kind({} {})", self.api_version(), self.kind)
    }
}

/// The name of a built-in type in OpenAPI: the Go package path turned around.
pub fn schema_name(group: &str, version: &str, kind: &str) -> String {
    match group {
        "" => format!("io.k8s.api.core.{version}.{kind}"),
        "apiextensions.k8s.io" => {
            format!("io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.{version}.{kind}")
        }
        "apiregistration.k8s.io" => format!("io.k8s.kube-aggregator.pkg.apis.apiregistration.{version}.{kind}"),
        _ => {
            let short = group.split('.').next().unwrap_or(group);
            format!("io.k8s.api.{short}.{version}.{kind}")
        }
    }
}
