//! The declaration of a kind: its names, scope, verbs, subresources, columns and rules as data, and its logic as
//! [`Behaviour`].
//!
//! Built-in kinds are declared with the builder, one file each; a custom resource builds the same struct at run time.
//! Handlers see only this erased form and must never name a kind.

mod builder;
mod column;
pub mod objectmeta;
mod sent;
mod serving;
mod update;

use std::sync::Arc;

pub use column::Column;
use corten_meta::field::FieldError;
use corten_meta::quote::quote;
use corten_meta::{Object, Value};
use jiff::Timestamp;
pub use serving::{ScaleServing, Serving};

use crate::emulation::{self, MinorVersion};
use crate::rules;
use crate::schema::introduced;

/// The verbs of a resource that is stored and served in full, as discovery lists them.
pub const FULL_VERBS: &[&str] = &["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"];
/// The verbs of a subresource that views and writes a part of its parent.
const PART_VERBS: &[&str] = &["get", "patch", "update"];
/// The verbs of a proxy subresource: it passes every HTTP method.
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
    /// The verbs, as in discovery.
    pub verbs: Vec<&'static str>,
    pub subresources: Vec<Subresource>,
    /// The type's name in the schema table, e.g. `io.k8s.api.apps.v1.Deployment`.
    pub schema: String,
    /// The columns of `kubectl get`, in the order of [`Kind::cells`].
    pub columns: Vec<Column>,
    /// The fields that a field selector may name, beyond `metadata.name` and `metadata.namespace`.
    pub selectable_fields: Vec<String>,
    pub storage: Storage,
    pub rules: Rules,
    /// The warning of every request for a deprecated kind.
    pub deprecation: Option<std::borrow::Cow<'static, str>>,
    pub behaviour: Arc<dyn Behaviour>,
    /// The version of Kubernetes whose fields and rules the kind has.
    pub emulated: MinorVersion,
}

/// The storage of a kind's objects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Storage {
    /// Stored under this prefix; a namespaced key is `<prefix>/<namespace>/<name>`, else `<prefix>/<name>`.
    Stored {
        prefix: String,
        /// The group and version of the stored form, if it is not the kind's own: two versions of one resource share a
        /// prefix. [`Behaviour::to_stored`] and [`Behaviour::from_stored`] convert.
        hub: Option<(String, String)>,
    },
    /// Never stored: the answer is computed from the request (reviews, bindings).
    Virtual,
}

/// The rules of the API server for objects of this kind beyond the common path.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rules {
    /// Whether there is a status subresource: a write of the object keeps status, a write of status keeps the rest.
    pub has_status: bool,
    /// Whether a write of status also keeps the metadata.
    pub status_keeps_metadata: bool,
    /// The metadata fields that a write of status does not restore but validates, if it keeps the metadata.
    pub status_takes: &'static [&'static str],
    /// Whether a write of status keeps the labels.
    pub status_keeps_labels: bool,
    /// Whether a write of status keeps the owner references and the deletion timestamp.
    pub status_keeps_owners: bool,
    /// Whether defaults of the status come from the spec.
    pub status_needs_spec: bool,
    /// Whether a writer owns the fields of the object as it was sent, also those of a part that the write then restores:
    /// custom resources, and kinds of which one version keeps in annotations what another has in spec and status.
    pub is_owned_as_sent: bool,
    /// Whether an object gets its defaults as it is sent and as it is read, while fields that a write restores stay as
    /// they are: custom resources.
    pub is_defaulted_as_sent: bool,
    /// Whether an object without labels takes those of its template, also if a write of its status removes them.
    pub labels_from_template: bool,
    /// Whether an apply to the status of an absent object creates it.
    pub status_apply_creates: bool,
    /// Whether a create keeps the status (nodes register with theirs).
    pub status_on_create: bool,
    /// The fields of a status that a create keeps otherwise.
    pub kept_of_new_status: &'static [&'static str],
    /// Whether the server writes the spec, so that no manager owns its fields.
    pub is_spec_reset: bool,
    /// Whether `metadata.generation` starts at 1 and increases when anything but metadata and status changes.
    pub generation: bool,
    /// Whether an empty list or map instead of none is a change too: for the generation, and for immutable fields.
    pub counts_empty: bool,
    /// Whether a dropped field of a disabled feature counts as a change of the generation.
    pub counts_gated: bool,
    /// Whether an update of an absent object creates it.
    pub allow_create_on_update: bool,
    /// Whether an update without resourceVersion overwrites.
    pub allow_unconditional_update: bool,
    /// Whether deletion first sets deletionTimestamp and waits for the grace period (pods).
    pub graceful_delete: bool,
    /// Whether a delete answers with the deleted object, not with a Status.
    pub returns_deleted: bool,
    /// Whether a delete without propagationPolicy orphans the dependents (a promise of old versions).
    pub orphan_by_default: bool,
    /// Whether no object ever depends on one of this kind, so that a delete adds no finalizers for dependents.
    pub is_without_dependents: bool,
    /// Whether the first delete sets only the deletion timestamp: no grace period, no generation.
    pub is_marked_by_time: bool,
    /// The warning of a delete without propagationPolicy.
    pub delete_warning: Option<&'static str>,
    /// The rule of `metadata.name`.
    pub name_rule: NameRule,
    /// The column by whose number the rows of a table are sorted, before their names.
    pub rows_by: Option<usize>,
    /// Whether its status subresource cannot be read as a table.
    pub status_has_no_rows: bool,
}

/// The rule of a kind's names; the checks themselves are in [`objectmeta`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum NameRule {
    /// RFC 1123 subdomain, the rule of most kinds.
    #[default]
    Subdomain,
    /// RFC 1123 subdomain, with the messages of upstream's newer rules.
    SubdomainInBytes,
    /// RFC 1123 label.
    Label,
    /// RFC 1035 label.
    Label1035,
    /// Any name that is safe as one segment of a URL path.
    PathSegment,
    /// An IP address in canonical form.
    Ip,
    /// The kind's own `validate` checks the name.
    Own,
    /// The kind has no rule: the common rule applies only if there are no other errors.
    None,
}

/// A path below an object of the kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subresource {
    pub name: &'static str,
    pub role: Role,
    pub verbs: Vec<&'static str>,
    /// The group, version and kind of its body, as in discovery (empty group and version: the parent's).
    pub group: &'static str,
    pub version: &'static str,
    pub kind: String,
}

/// The role of a subresource; the API server has one handler per role.
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

/// The JSON paths (as in a CRD: `.spec.replicas`) by which the scale subresource reads and writes its parent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScalePaths {
    pub spec_replicas: String,
    pub status_replicas: String,
    /// The path of a label selector: a string, a `LabelSelector` or a plain map.
    pub selector: Option<String>,
}

/// The logic of a kind. Every hook is defaulted; all are pure.
pub trait Behaviour: Send + Sync {
    /// Returns the error of an object that has fields of the right types but cannot be decoded, in the words of
    /// upstream's decoder.
    fn unreadable(&self, _object: &Value) -> Option<String> {
        None
    }
    /// Sets the defaults that upstream sets when it decodes a request or a stored object.
    fn default(&self, _object: &mut Value) {}
    /// Sets the defaults of an applied object.
    fn default_applied(&self, object: &mut Value) {
        self.default(object);
    }
    /// Reports whether upstream stores such a new object without a field that it sets when it reads it: the first write
    /// adds it, also if it changes nothing else.
    fn is_completed_when_read(&self, _object: &Value) -> bool {
        false
    }
    /// Returns an object without fields that are stored but hidden from readers. Its subresources show them.
    fn shown(&self, _stored: &[u8]) -> Option<Value> {
        None
    }
    /// Sets absent times to the time of the request, where upstream does so when it decodes a request.
    fn default_times(&self, _object: &mut Value, _now: Timestamp) {}
    /// Returns warnings of a new object that are sent before its last step, also if it is refused.
    fn early_warnings(&self, _object: &Value) -> Vec<String> {
        Vec::new()
    }
    /// Prepares a create, as the last step before validation: metadata is complete (name, uid, generation), status is
    /// cleared.
    fn prepare_create(&self, _object: &mut Value) {}
    /// Prepares an update: status is the old one, generation is set.
    fn prepare_update(&self, _new: &mut Value, _old: &Value) {}
    /// Prepares a write to the status subresource: everything but the status is the old one.
    fn prepare_status_update(&self, _new: &mut Value, _old: &Value, _now: Timestamp) {}
    /// Returns the section of the validation table with the kind's rules. Its parts `create`, `update` and `status` are
    /// the rules of new objects and of changes.
    fn rules(&self) -> &str {
        ""
    }
    /// Returns the errors of the object alone, without those of its metadata.
    fn validate(&self, object: &Value) -> Vec<FieldError> {
        rules::validate(self.rules(), object, None)
    }
    /// Returns the errors of an existing object, for kinds whose rules depend on its old state.
    fn validate_present(&self, object: &Value, _old: &Value) -> Vec<FieldError> {
        self.validate(object)
    }
    /// Returns the errors of a new object that an existing object may have.
    fn validate_create(&self, object: &Value) -> Vec<FieldError> {
        rules::validate_change(self.rules(), "create", object, object)
    }
    /// Returns the errors of a new object. A kind whose rules for new objects are mixed with the others returns them in
    /// order.
    fn validate_new(&self, object: &Value) -> Vec<FieldError> {
        let mut errors = self.validate(object);
        errors.extend(self.validate_create(object));
        errors
    }
    /// Returns the errors of the change alone: immutable fields and forbidden transitions.
    fn validate_update(&self, new: &Value, old: &Value) -> Vec<FieldError> {
        rules::validate_change(self.rules(), "update", new, old)
    }
    /// Returns the errors of a write to the status subresource.
    fn validate_status_update(&self, new: &Value, old: &Value) -> Vec<FieldError> {
        rules::validate_change(self.rules(), "status", new, old)
    }
    /// Returns the errors of a write to a subresource that changes one part of the object; both objects are complete.
    fn validate_part_update(&self, _role: Role, _new: &Value, _old: &Value) -> Vec<FieldError> {
        Vec::new()
    }
    /// Prepares the first deletion request: adds finalizers and conditions.
    fn prepare_delete(&self, _object: &mut Value, _now: Timestamp) {}
    /// Adds the fields that upstream writes into an empty object, beyond the zeros of its type.
    fn empty(&self, _object: &mut Value) {}
    /// Returns the row of `kubectl get`, in the order of [`Kind::columns`]; an empty one if the columns have sources.
    fn cells(&self, _object: &Value, _now: Timestamp) -> Vec<Value> {
        Vec::new()
    }
    /// Returns the annotations that belong to this version and not to the object: its row in a table has none of them.
    fn annotations_of_version(&self) -> &'static [&'static str] {
        &[]
    }
    /// Returns the reason and message why the object is finished, if its row has it.
    fn completion(&self, _object: &Value) -> Option<(&'static str, &'static str)> {
        None
    }
    /// Returns the value of a selectable field beyond `metadata.name` and `metadata.namespace`.
    fn fields(&self, _object: &Value, _field: &str) -> Option<String> {
        None
    }
    /// Returns the error for a field that cannot be selected by, if the kind has selectable fields.
    fn unsupported_field(&self, field: &str) -> String {
        format!("field label not supported: {field}")
    }
    /// Returns the JSON paths of the scale subresource.
    fn scale(&self) -> Option<ScalePaths> {
        None
    }
    /// Returns the OpenAPI schema of a custom resource, which the table does not have.
    fn structural_schema(&self) -> Option<&Value> {
        None
    }
    /// Returns the webhook that converts between the versions of a custom resource, from its CustomResourceDefinition.
    fn conversion_webhook(&self) -> Option<&Value> {
        None
    }
    /// Returns the time of the last change of a custom resource's CustomResourceDefinition: objects that were stored
    /// before may lack defaults and have unknown fields.
    fn defined_at(&self) -> u64 {
        0
    }
    /// Removes the fields that the schema does not have; part of [`Behaviour::default`].
    fn prune(&self, _object: &mut Value) {}
    /// Returns the warnings for the client that wrote this object.
    fn warnings(&self, _new: &Value, _old: Option<&Value>) -> Vec<String> {
        Vec::new()
    }
    /// Returns the errors on unchanged fields, which are reported and do not refuse the write; `errors` are those that
    /// do.
    fn ratcheted(&self, _new: &Value, _old: &Value, _errors: &[FieldError]) -> Vec<String> {
        Vec::new()
    }
    /// Returns the warnings for the client that wrote the status of this object.
    fn status_warnings(&self, _object: &Value) -> Vec<String> {
        Vec::new()
    }
    /// Converts from this version to the stored one (see [`Storage::Stored`]).
    fn to_stored(&self, _object: &mut Value) {}
    /// Converts from the stored version to this one.
    #[expect(clippy::wrong_self_convention, reason = "it converts an object, not the behaviour")]
    fn from_stored(&self, _object: &mut Value) {}
    /// Returns the projection, if this kind is a read-only projection of a stored kind.
    fn projection(&self) -> Option<Projection> {
        None
    }
}

/// Makes a projection of a stored object. It copies only the fields that it names, so that a future field of the stored
/// kind stays hidden.
pub type Projection = fn(&Object) -> Value;

/// A kind without logic.
pub struct Plain;
impl Behaviour for Plain {}

/// A kind whose only logic is the section of its type in the validation table.
pub(crate) struct Ruled(String);

impl Behaviour for Ruled {
    fn rules(&self) -> &str {
        &self.0
    }
}

impl Kind {
    /// Makes a stored, namespaced resource of the core group's schema package with every verb and no subresource.
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
            columns: Vec::new(),
            selectable_fields: Vec::new(),
            storage: Storage::Stored { prefix: format!("/registry/{plural}"), hub: None },
            rules: Rules { allow_unconditional_update: true, ..Rules::default() },
            deprecation: None,
            behaviour: Arc::new(Plain),
            emulated: MinorVersion::NEWEST,
        }
        .table("Name, Age")
    }

    /// Returns the row of `kubectl get`.
    pub fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        let own = self.behaviour.cells(object, now);
        if !own.is_empty() {
            return own;
        }
        self.columns.iter().map(|column| crate::cells::cell(&column.source, object, now)).collect()
    }

    /// Returns `apps/v1`, or `v1` for the core group.
    pub fn api_version(&self) -> String {
        if self.group.is_empty() { self.version.clone() } else { format!("{}/{}", self.group, self.version) }
    }

    /// Reports whether a CustomResourceDefinition made it: the schema table does not have it.
    pub fn is_custom(&self) -> bool {
        self.schema.is_empty()
    }

    pub fn subresource(&self, name: &str) -> Option<&Subresource> {
        self.subresources.iter().find(|s| s.name == name)
    }

    /// Returns the error of a field selector with this field; `None` if it is allowed.
    pub fn selection_error(&self, field: &str) -> Option<String> {
        if self.selectable_fields.iter().any(|known| known == field) {
            return None;
        }
        // Custom resources list their fields, even if there are none.
        let has_own = self.is_custom() || !self.selectable_fields.is_empty();
        match field {
            "metadata.name" => None,
            // Cluster-scoped kinds that list their fields leave it out.
            "metadata.namespace" if self.namespaced || !has_own => None,
            _ if has_own => Some(self.behaviour.unsupported_field(field)),
            _ => Some(format!(
                "{} is not a known field selector: only \"metadata.name\", \"metadata.namespace\"",
                quote(field)
            )),
        }
    }

    /// Sets defaults: first those of the schema, then those of the kind, then the zeros that are always written.
    /// Reports whether a given value is lost by it.
    pub fn default(&self, object: &mut Value) -> bool {
        let lost = crate::schema::fill_defaults(&self.schema, object);
        self.behaviour.default(object);
        crate::schema::fill_zeros(&self.schema, object);
        lost
    }

    /// Sets the defaults of an applied object, whose nulls are kept.
    pub fn default_applied(&self, object: &mut Value) -> bool {
        let lost = crate::schema::fill_defaults(&self.schema, object);
        self.behaviour.default_applied(object);
        crate::schema::fill_zeros(&self.schema, object);
        lost
    }

    /// Normalizes an object of another version as its type writes it: removes fields that count as absent.
    pub fn rewrite(&self, object: &mut Value) {
        crate::schema::fill_defaults(&self.schema, object);
        self.write_zeros(object);
    }

    /// Writes the zeros that are always written into an object of another version.
    pub fn write_zeros(&self, object: &mut Value) {
        crate::schema::fill_zeros(&self.schema, object);
    }

    /// Removes the fields of disabled features, before validation; those that the emulated version lacks stay in use
    /// if the stored object uses them.
    pub fn drop_gated(&self, object: &mut Value, old: Option<&Value>) {
        crate::schema::drop_gated(&self.schema, object);
        if self.emulated < MinorVersion::NEWEST {
            introduced::drop_later(&self.schema, self.emulated, object, old);
        }
    }

    /// Returns an empty object of this kind, as upstream writes it.
    pub fn empty(&self) -> Value {
        let mut object = crate::schema::empty(&self.schema);
        object["apiVersion"] = self.api_version().into();
        object["kind"] = self.kind.as_str().into();
        self.behaviour.empty(&mut object);
        object
    }

    /// Normalizes empty lists and maps as upstream's store returns them. The last step before an object is stored or
    /// shown.
    pub fn settle(&self, object: &mut Value) {
        crate::schema::settle(&self.schema, object);
    }

    /// Returns the object as it would be stored.
    pub fn settled(&self, object: &Value) -> Value {
        let mut stored = object.clone();
        self.settle(&mut stored);
        stored
    }

    /// Formats the values of errors, in which upstream prints structs.
    fn shown(&self, mut errors: Vec<FieldError>) -> Vec<FieldError> {
        crate::schema::print_values(&self.schema, &mut errors);
        errors
    }

    /// Returns every error of a new object: its metadata's and its own.
    pub fn validate(&self, object: &Value) -> Vec<FieldError> {
        let mut errors = update::validate_new(self, object);
        errors.extend(emulation::validate(self.emulated, &self.kind, object, None));
        self.shown(errors)
    }

    /// Returns every error of an update: the metadata's, the new object's and the change's.
    pub fn validate_update(&self, new: &Value, old: &Value) -> Vec<FieldError> {
        self.validate_sent_update(new, new, old)
    }

    /// Returns every error of a write to the status subresource.
    pub fn validate_status_update(&self, new: &Value, old: &Value) -> Vec<FieldError> {
        self.validate_sent_status_update(new, new, old)
    }

    /// Returns every error of a write to a subresource that changes one part of the object.
    pub fn validate_part_update(&self, role: Role, new: &Value, old: &Value) -> Vec<FieldError> {
        let rule = |object: &Value| self.behaviour.validate_part_update(role, object, old);
        let before = || [self.behaviour.validate_new(old), rule(old)].concat();
        let own = self.unforgiven(rule(new), [new, old], before);
        let metadata = match role {
            Role::Approval => return self.shown(update::validate_status(self, new, old, &own)),
            Role::Finalize => update::validate_metadata_once(self, new, old),
            _ => update::validate_metadata(self, new, old),
        };
        self.shown([metadata, own].concat())
    }
}

impl std::fmt::Debug for Kind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Kind({} {})", self.api_version(), self.kind)
    }
}

/// Returns the OpenAPI name of a built-in type: the reversed Go package path.
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
