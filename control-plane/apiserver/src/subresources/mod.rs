//! Subresources: one handler for each role, whatever the kind.

pub mod approval;
pub mod binding;
pub mod eviction;
pub mod parts;
pub mod scale;
pub mod token;

use corten_access::{Attributes, Verb};
use corten_api::{Role, Subresource};
use corten_managed_fields::{managers_of, set_managers};
use corten_meta::Status;

use crate::authentication::token::Tokens;
use crate::body::{Reply, RequestBody};
use crate::proxy::Kubelets;
use crate::request::RequestInfo;
use crate::verbs::apply::Apply;
use crate::verbs::options::{Write, check_options};
use crate::verbs::patch::{Patch, is_apply};
use crate::verbs::update::reply;
use crate::write::CONCERNED;
use crate::write::Scope;
use crate::write::check_namespace;
use crate::write::field_ownership::Ownership;
use crate::write::{Change, Part, Transform, check_name, owner_references};
use crate::{proxy, verbs};

/// Checks that the path is one of the subresource, and the method one of the path.
pub fn check_verb(target: &Scope<'_>, subresource: &Subresource) -> Result<(), Status> {
    let info = &target.context.info;
    let method = &target.context.method;
    let is_proxy = subresource.role == Role::Proxy;
    let is_deeper = !is_proxy && !info.remainder.is_empty();
    if is_deeper || (target.resource.kind.namespaced && !info.is_in_namespace) {
        return Err(Status::path_not_found());
    }
    // A proxy passes on a method that is no verb of the API.
    let foreign = is_proxy && *method == http::Method::OPTIONS;
    let is_head = !is_proxy && *method == http::Method::HEAD;
    if is_head || (!foreign && !subresource.verbs.contains(&verb(info).as_str())) {
        return Err(Status::method_not_allowed());
    }
    Ok(())
}

/// Returns the verb of a request for a subresource. A path without a name looks like one of a collection.
fn verb(info: &RequestInfo) -> &Verb {
    match (&info.verb, info.name.is_empty()) {
        (Verb::List, true) => &Verb::Get,
        (Verb::DeleteCollection, true) => &Verb::Delete,
        (verb, _) => verb,
    }
}

/// The parts of the server that some subresources call.
pub struct Backends<'a> {
    pub tokens: &'a Tokens,
    pub kubelets: &'a Kubelets,
}

/// Hands the request to the handler of the subresource's role.
pub async fn dispatch(
    target: &Scope<'_>,
    subresource: &Subresource,
    backends: Backends<'_>,
    body: RequestBody,
) -> Result<Reply, Status> {
    let info = &target.context.info;
    let verb = verb(info);
    if info.name.is_empty() {
        return Err(Status::bad_request("name must be provided"));
    }
    check_stream(target, subresource.role).await?;
    if matches!(subresource.role, Role::Log | Role::Exec | Role::Attach | Role::PortForward | Role::Proxy) {
        return proxy::connect(target, backends.kubelets, subresource.role, body).await;
    }
    let bytes = body.read(target.core.config.max_body_bytes).await?;
    target.context.audit.keep_request(&bytes);
    if *verb == Verb::Create {
        check_options(target.context, Write::Create)?;
    }
    match subresource.role {
        // The conditions of a kind with approvals have times.
        Role::Status if target.resource.kind.subresources.iter().any(|s| s.role == Role::Approval) => {
            let dated = |new, old: &corten_meta::Value| Ok(approval::dated(new, old, target.context.now));
            part(target, &bytes, Part::Status, &dated).await
        }
        Role::Status => part(target, &bytes, Part::Status, &|new, _| Ok(new)).await,
        Role::Finalize => part(target, &bytes, Part::Transformed, &parts::finalizers).await,
        Role::EphemeralContainers => part(target, &bytes, Part::Transformed, &parts::ephemeral_containers).await,
        Role::Resize => part(target, &bytes, Part::Transformed, &parts::resize).await,
        Role::Approval => {
            if *verb == Verb::Update {
                check_name(target, &target.decode(&bytes)?)?;
            }
            if *verb != Verb::Get {
                approval::check(target).await?;
            }
            part(target, &bytes, Part::Transformed, &approval::conditions(target)).await
        }
        Role::Scale => scale::serve(target, &bytes).await,
        Role::Binding => binding::create(target, &bytes).await,
        Role::Eviction => eviction::create(target, &bytes).await,
        Role::Token => token::create(target, backends.tokens, &bytes).await,
        Role::Log | Role::Exec | Role::Attach | Role::PortForward | Role::Proxy => Err(Status::path_not_found()),
    }
}

/// Checks that the user may `create` a stream: a WebSocket opens with GET, but a command in a container is no read.
async fn check_stream(target: &Scope<'_>, role: Role) -> Result<(), Status> {
    let context = target.context;
    if !matches!(role, Role::Exec | Role::Attach | Role::PortForward) || context.info.verb != Verb::Get {
        return Ok(());
    }
    let attributes = Attributes { verb: "create", ..context.info.attributes(&context.user) };
    target.core.authorization.check(&attributes).await
}

/// Takes the fields that a subresource may change from the wanted object, and the rest from the present object.
pub type Merge<'a> =
    dyn Fn(corten_meta::Value, &corten_meta::Value) -> Result<corten_meta::Value, Status> + Send + Sync + 'a;

/// Serves a subresource whose body is the parent itself, of which it changes a part. For some subresources the writer
/// also owns fields that it sent and that were not changed.
async fn part(target: &Scope<'_>, bytes: &bytes::Bytes, part: Part, merge: &Merge<'_>) -> Result<Reply, Status> {
    let role = target.resource.kind.subresource(&target.context.info.subresource).map(|sub| sub.role);
    let owns_all = matches!(role, Some(Role::Finalize | Role::EphemeralContainers | Role::Resize));
    let unchanged: &Merge<'_> = &|new, _| Ok(new);
    let (first, then) = if owns_all { (unchanged, Some(merge)) } else { (merge, None) };
    match target.context.info.verb {
        Verb::Get => verbs::get::get(target).await,
        Verb::Update => {
            check_options(target.context, Write::Update)?;
            let mut body = target.decode(bytes)?;
            check_namespace(target, &mut body)?;
            check_name(target, &body)?;
            owner_references::drop_repeated(target, &mut body);
            let transform: &Transform<'_> = &|old| first(body.clone(), old);
            let mut change = Change::new(part, transform).narrowed(then).sparing_rest(true);
            if part == Part::Status {
                change = change.or_create(&body);
            }
            Ok(reply(target, &change.carry_out(target).await?))
        }
        _ if is_apply(target) => {
            let kind = &target.resource.kind;
            let apply = Apply::decode(target, bytes, &kind.api_version(), &kind.kind)?;
            let transform: &Transform<'_> = &|old| {
                let applied = apply.as_ref().map_err(Status::clone)?.transform(target, part, old)?;
                let managers = managers_of(&applied);
                let mut object = merge(applied, old)?;
                set_managers(&mut object, managers);
                Ok(object)
            };
            let create = || apply.as_ref().map_err(Status::clone)?.create(target);
            let mut change = Change::new(part, transform).owning(Ownership::Given);
            if part == Part::Status && (kind.rules.allow_create_on_update || kind.rules.status_apply_creates) {
                change = change.or_apply(&create);
            }
            Ok(reply(target, &change.carry_out(target).await?))
        }
        _ => {
            let patch = Patch::decode(target, bytes)?;
            let transform: &Transform<'_> = &|old| first(patch.apply_checked(target, old)?, old);
            let change = Change::new(part, transform).narrowed(then).sparing_rest(patch.is_within(&CONCERNED));
            Ok(reply(target, &change.carry_out(target).await?))
        }
    }
}
