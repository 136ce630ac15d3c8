//! The options of a write, from its query: `fieldManager`, `force`, `dryRun`, `fieldValidation`.
//!
//! They are checked before the body is read, all together, so that a client gets every error at once.

use corten_api::objectmeta::validate_manager;
use corten_meta::{FieldError, GroupKind, Path, Status, Value};

use crate::context::Context;
use crate::request::Query;

/// The write that the options belong to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Write {
    Create,
    Update,
    Patch,
    Apply,
}

impl Write {
    fn kind(self) -> &'static str {
        match self {
            Write::Create => "CreateOptions",
            Write::Update => "UpdateOptions",
            Write::Patch | Write::Apply => "PatchOptions",
        }
    }
}

pub fn check_options(context: &Context, write: Write) -> Result<(), Status> {
    let query = &context.info.query;
    let mut errors = Vec::new();
    let manager = Path::root("fieldManager");
    if write == Write::Apply && query.get("fieldManager").is_none() {
        errors.push(FieldError::required(&manager, "is required for apply patch"));
    }
    if write == Write::Patch && query.has("force") {
        errors.push(FieldError::forbidden(&Path::root("force"), "may not be specified for non-apply patch"));
    }
    errors.extend(validate_manager(query.get("fieldManager").unwrap_or_default(), &manager));
    errors.extend(dry_run_error(&dry_run_words(query)));
    let validation = query.get("fieldValidation").unwrap_or_default();
    if !matches!(validation, "" | "Ignore" | "Warn" | "Strict") {
        let supported = ["", "Ignore", "Strict", "Warn"];
        errors.push(FieldError::not_supported(&Path::root("fieldValidation"), validation, &supported));
    }
    refuse(write.kind(), errors)
}

/// Returns the values of `dryRun`.
pub fn dry_run_words(query: &Query) -> Vec<Value> {
    query.all("dryRun").map(Value::from).collect()
}

/// Refuses every value of `dryRun` but `All`.
pub fn dry_run_error(words: &[Value]) -> Option<FieldError> {
    let unknown = words.iter().any(|word| word != "All");
    unknown.then(|| FieldError::not_supported(&Path::root("dryRun"), Value::from(words.to_vec()), &["All"]))
}

/// Returns the error for invalid options of this kind.
pub fn refuse(kind: &str, errors: Vec<FieldError>) -> Result<(), Status> {
    if errors.is_empty() {
        return Ok(());
    }
    let kind = GroupKind { group: "meta.k8s.io".to_owned(), kind: kind.to_owned() };
    Err(Status::invalid(&kind, "", errors))
}

/// Returns whether a watch begins with the present state, by its options or by default; `None` for a watch that resumes
/// from a resourceVersion.
pub fn initial_events(query: &Query) -> Option<bool> {
    let from_nowhere = matches!(query.get("resourceVersion"), None | Some("0"));
    let is_default = from_nowhere && query.get("resourceVersionMatch").is_none();
    if query.has("sendInitialEvents") { Some(query.flag("sendInitialEvents")) } else { is_default.then_some(true) }
}

pub fn check_list_options(query: &Query, watch: bool) -> Result<(), Status> {
    let by_default = watch && !query.has("sendInitialEvents") && initial_events(query).is_some();
    let how = query.get("resourceVersionMatch").unwrap_or(if by_default { "NotOlderThan" } else { "" });
    let path = Path::root("resourceVersionMatch");
    let mut errors = Vec::new();
    let mut forbid = |condition: bool, why: &str| {
        if condition {
            errors.push(FieldError::forbidden(&path, why));
        }
    };
    let streams = query.has("sendInitialEvents") || by_default;
    let given = !how.is_empty();
    let continued = query.get("continue").is_some();
    if watch {
        let other = how != "NotOlderThan";
        forbid(streams && other, "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan");
        let alone = "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided";
        forbid(given && !streams, alone);
        if given && other {
            errors.push(FieldError::not_supported(&path, how, &["NotOlderThan"]));
        }
        if given && continued {
            errors.push(FieldError::forbidden(&path, "resourceVersionMatch is forbidden when continue is provided"));
        }
        return refuse("ListOptions", errors);
    }
    let version = query.get("resourceVersion").unwrap_or_default();
    forbid(given && version.is_empty(), "resourceVersionMatch is forbidden unless resourceVersion is provided");
    forbid(given && continued, "resourceVersionMatch is forbidden when continue is provided");
    if given && !matches!(how, "Exact" | "NotOlderThan") {
        errors.push(FieldError::not_supported(&path, how, &["Exact", "NotOlderThan", ""]));
    }
    if how == "Exact" && version == "0" {
        let why = "resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\"";
        errors.push(FieldError::forbidden(&path, why));
    }
    if streams {
        let why = "sendInitialEvents is forbidden for list";
        errors.push(FieldError::forbidden(&Path::root("sendInitialEvents"), why));
    }
    refuse("ListOptions", errors)
}
