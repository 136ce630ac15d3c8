//! Dispatch of a request for a resource to the verb, the subresource or the virtual resource that answers it.

use corten_access::Verb;
use corten_api::{Kind, Role, Subresource};
use corten_meta::Status;
use corten_meta::quote::quote;

use crate::body::{Reply, RequestBody};
use crate::context::Context;
use crate::core::Core;
use crate::metrics::DEPRECATED_APIS;
use crate::negotiation::{ACCEPTED, Format, View};
use crate::request::RequestInfo;
use crate::response;
use crate::server::Server;
use crate::subresources::Backends;
use crate::target::Target;
use crate::verbs::{create, delete, get, list, patch, update, watch};
use crate::write::Scope;
use crate::{subresources, virtual_resources};

/// Finds the resource and hands the request to the verb's handler. It checks the path first, then the method, then the
/// media types. The options of the response are checked last.
pub async fn dispatch(server: &Server, context: &Context, body: RequestBody) -> Result<Reply, Status> {
    let reply = hand_over(server, context, body).await?;
    if reply.status().is_success() {
        check_view(context)?;
    }
    Ok(reply)
}

async fn hand_over(server: &Server, context: &Context, body: RequestBody) -> Result<Reply, Status> {
    let info = &context.info;
    let Some(resource) = &context.resource else {
        return unknown_resource(server, context);
    };
    let kind = &resource.kind;
    let is_registered = kind.serving().is_registered;
    let is_served = !kind.verbs.is_empty();
    if !is_registered && (!is_served || is_misplaced(info, kind.namespaced)) {
        return Ok(response::page_not_found());
    }
    if resource.is_unresolved {
        return Err(Status::internal("error resolving resource"));
    }
    // A request without a registered path gets the warning whatever its outcome.
    if !is_registered {
        warn_of_deprecation(&server.core, context, kind);
    }
    let namespace = if kind.namespaced { info.namespace.as_str() } else { "" };
    let target = Target { core: &server.core, context, resource, namespace, name: &info.name };
    let target = Scope { target, admission: &server.admission };
    let subresource = route(&target)?;
    check_media_types(&target, subresource)?;
    if let Some(subresource) = subresource {
        let backends = Backends { tokens: &server.authentication.tokens, kubelets: &server.kubelets };
        return subresources::dispatch(&target, subresource, backends, body).await;
    }
    if is_registered {
        warn_of_deprecation(&server.core, context, kind);
    }
    if resource.stored.is_none() {
        if matches!(info.verb, Verb::Get | Verb::List) {
            return virtual_resources::read(&target, &server.gatherer).await;
        }
        let bytes = body.read(server.core.config.max_body_bytes).await?;
        context.audit.keep_request(&bytes);
        return virtual_resources::create(&target, &server.authentication, &bytes).await;
    }
    match &info.verb {
        Verb::Get => get::get(&target).await,
        Verb::List => list::list(&target).await,
        Verb::Watch => watch::watch(&target).await,
        verb => {
            let bytes = body.read(server.core.config.max_body_bytes).await?;
            context.audit.keep_request(&bytes);
            match verb {
                Verb::Create => create::create(&target, &bytes).await,
                Verb::Update => update::update(&target, &bytes).await,
                Verb::Patch => patch::patch(&target, &bytes).await,
                Verb::Delete => delete::delete(&target, &bytes).await,
                Verb::DeleteCollection => delete::delete_collection(&target, &bytes).await,
                _ => Err(Status::method_not_allowed()),
            }
        }
    }
}

/// Finds the subresource of the path, if it has one, and checks that it takes the method.
fn route<'a>(target: &Scope<'a>) -> Result<Option<&'a Subresource>, Status> {
    let info = &target.context.info;
    let kind = &target.resource.kind;
    if !kind.serving().is_registered {
        return route_by_verb(target);
    }
    let is_named_by_namespace = info.resource == "namespaces" && info.name == info.namespace;
    if !kind.namespaced && !info.namespace.is_empty() && !is_named_by_namespace {
        return Err(Status::path_not_found());
    }
    if info.subresource.is_empty() {
        return match info.remainder.is_empty() {
            true => check_verb(target).map(|()| None),
            false => Err(Status::path_not_found()),
        };
    }
    if info.verb == Verb::Watch {
        return Err(Status::path_not_found());
    }
    let subresource = kind.subresource(&info.subresource).ok_or_else(Status::path_not_found)?;
    subresources::check_verb(target, subresource)?;
    Ok(Some(subresource))
}

/// Does the same for a kind without registered paths: the verb alone decides, whatever the method and whatever follows
/// in the path.
fn route_by_verb<'a>(target: &Scope<'a>) -> Result<Option<&'a Subresource>, Status> {
    let info = &target.context.info;
    let kind = &target.resource.kind;
    // Its only subresources are those of its CustomResourceDefinition.
    let part = || kind.subresource(&info.subresource).ok_or_else(|| target.not_found());
    let subresource = if info.subresource.is_empty() { None } else { Some(part()?) };
    let verb = &info.verb;
    let is_taken = match subresource {
        Some(subresource) => subresource.verbs.contains(&verb.as_str()),
        None => kind.verbs.contains(&verb.as_str()),
    };
    if !is_taken {
        let mut status = Status::method_not_allowed();
        let resource = target.resource.group_resource();
        status.message = format!("{verb} is not supported on resources of kind \"{resource}\"");
        let details = status.details.get_or_insert_default();
        (details.group, details.kind) = (resource.group, resource.resource);
        return Err(status);
    }
    if matches!(verb, Verb::Update | Verb::Patch) && info.name.is_empty() {
        return Err(Status::bad_request("name must be provided"));
    }
    Ok(subresource)
}

/// Checks that a patch has a supported media type, and that the client accepts one of the response's.
fn check_media_types(target: &Scope<'_>, subresource: Option<&Subresource>) -> Result<(), Status> {
    let context = target.context;
    let is_proxied = subresource.is_some_and(|subresource| subresource.role == Role::Proxy);
    if context.info.verb == Verb::Patch && !is_proxied {
        patch::check_media_type(target)?;
    }
    check_accept(target)
}

/// Returns whether a kind without registered paths has nothing at this path: its scope is another than the path's.
fn is_misplaced(info: &RequestInfo, namespaced: bool) -> bool {
    if !namespaced {
        return !info.namespace.is_empty();
    }
    info.namespace.is_empty() && !matches!(info.verb, Verb::List | Verb::Watch)
}

/// Checks that the client accepts a form of the response. Path and method are known by now.
fn check_accept(target: &Scope<'_>) -> Result<(), Status> {
    let context = target.context;
    let kind = &target.resource.kind;
    if let Some(status) = &context.not_acceptable {
        // A media type that the server supports at all gets as far as the resource, and so gets its warning.
        if status.details.is_none() && kind.serving().is_registered {
            warn_of_deprecation(target.core, context, kind);
        }
        return Err(status.clone());
    }
    // Without field numbers, only the metadata has a Protobuf form.
    let is_whole = context.accept.view == View::Plain;
    if context.accept.format == Format::Protobuf && is_whole && !kind.serving().has_field_numbers {
        return Err(Status::not_acceptable(ACCEPTED));
    }
    Ok(())
}

/// Warns the client of a deprecated version, and counts the request.
fn warn_of_deprecation(core: &Core, context: &Context, kind: &Kind) {
    if let Some(warning) = &kind.deprecation {
        context.warn(warning.clone());
        let labels = [kind.group.as_str(), "", kind.plural.as_str(), "", kind.version.as_str()];
        core.metrics.note(&DEPRECATED_APIS, &labels);
    }
}

/// Checks the value of `includeObject` of a request for a Table.
fn check_view(context: &Context) -> Result<(), Status> {
    let include = context.info.query.get("includeObject").unwrap_or_default();
    match context.accept.view {
        View::Table if !matches!(include, "" | "None" | "Metadata" | "Object") => Err(Status::bad_request(format!(
            "Unable to convert to Table as requested: includeObject: Invalid value: {}: must be 'Metadata', \
             'Object', 'None', or empty",
            quote(include)
        ))),
        _ => Ok(()),
    }
}

/// Answers for an unknown resource: a registered group with a Status, any other path with a plain 404.
fn unknown_resource(server: &Server, context: &Context) -> Result<Reply, Status> {
    let info = &context.info;
    let is_registered = server.core.registry.resources().has_registered_group(&info.group);
    if is_registered { Err(Status::path_not_found()) } else { Ok(response::page_not_found()) }
}

/// Checks that the path is one of the resource, and the method one of the path.
fn check_verb(target: &Scope<'_>) -> Result<(), Status> {
    let info = &target.context.info;
    let kind = &target.resource.kind;
    let across = kind.namespaced && !info.is_in_namespace;
    let reads_all = matches!(info.verb, Verb::List | Verb::Watch);
    // A list or watch of one object has its name in the selector, except where the path has `/watch/`.
    let is_named = !info.name.is_empty() && (!reads_all || info.is_watch_path);
    // A resource that is only ever created has no named objects.
    let has_names = kind.verbs.iter().any(|verb| !matches!(*verb, "create" | "list" | "watch" | "deletecollection"));
    let is_unwatched = info.is_watch_path && !kind.verbs.contains(&"watch");
    if across && (is_named || !kind.verbs.contains(&"list")) || is_named && !has_names || is_unwatched {
        return Err(Status::path_not_found());
    }
    let misplaced = match info.verb {
        Verb::Create => is_named,
        Verb::Update | Verb::Patch => !is_named,
        // A path with `/watch/` is a watch, whatever the method.
        Verb::Watch => target.context.method != http::Method::GET,
        _ => target.context.method == http::Method::HEAD,
    };
    if misplaced || !kind.verbs.contains(&info.verb.as_str()) || (across && !reads_all) {
        return Err(Status::method_not_allowed());
    }
    Ok(())
}
