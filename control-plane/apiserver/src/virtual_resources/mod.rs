//! Resources that are answered and never stored: reviews, bindings and metrics. One file each, one list entry each.

mod access_review;
mod component_status;
mod rules_review;
mod token_review;
mod user_review;

use bytes::Bytes;
use corten_admission::Operation;
use corten_meta::{GroupKind, Status};
use http::StatusCode;
use serde_json::json;

use crate::authentication::Authentication;
use crate::body::Reply;
use crate::resource_metrics::Gatherer;
use crate::verbs::options::{Write, check_options};
use crate::write::Scope;
use crate::write::check_namespace;
use crate::write::field_ownership::track_create;
use crate::write::normalise::wipe;
use crate::write::owner_references;
use crate::{resource_metrics, response, subresources};

/// Answers a GET of a virtual resource or of one of its objects.
pub async fn read(target: &Scope<'_>, gatherer: &Gatherer) -> Result<Reply, Status> {
    let kind = &target.resource.kind;
    match (kind.group.as_str(), kind.plural.as_str()) {
        ("", "componentstatuses") => component_status::read(target),
        (resource_metrics::GROUP, _) => resource_metrics::read(target, gatherer).await,
        _ => Err(Status::path_not_found()),
    }
}

/// Answers a POST to a virtual resource.
pub async fn create(target: &Scope<'_>, authentication: &Authentication, bytes: &Bytes) -> Result<Reply, Status> {
    check_options(target.context, Write::Create)?;
    if target.resource.kind.namespaced && target.namespace.is_empty() {
        return Err(Status::bad_request("Namespace parameter required."));
    }
    let plural = target.resource.kind.plural.as_str();
    if plural == "bindings" {
        let mut binding = target.decode(bytes)?;
        check_namespace(target, &mut binding)?;
        let binding = target.admission.pass(target.for_admission(), Operation::Create, binding).await?;
        let pods = target.core.registry.required("", "v1", "pods")?;
        let pod = target.at(&pods, target.namespace, "");
        return subresources::binding::bind_pod(&pod, &binding).await;
    }
    let mut review = target.decode(bytes)?;
    check_namespace(target, &mut review)?;
    wipe(&mut review);
    owner_references::drop_repeated(target, &mut review);
    target.resource.kind.default(&mut review);
    track_create(target, &mut review);
    let mut review = target.admission.pass(target.for_admission(), Operation::Create, review).await?;
    let mut errors = target.resource.kind.behaviour.validate(&review);
    corten_api::schema::print_values(&target.resource.kind.schema, &mut errors);
    if !errors.is_empty() {
        // Upstream's reviews have no kind any more when they are refused.
        let kind = GroupKind { kind: String::new(), ..target.resource.group_kind() };
        return Err(Status::invalid(&kind, "", errors));
    }
    let status = match plural {
        "tokenreviews" => token_review::review(target, authentication, &review).await?,
        "selfsubjectreviews" => {
            let now = corten_meta::time::rfc3339(target.context.now);
            // The response is a new object.
            review["metadata"] = json!({ "creationTimestamp": now });
            user_review::review(target)
        }
        "selfsubjectaccessreviews" => access_review::own(target, &review).await,
        "subjectaccessreviews" | "localsubjectaccessreviews" => access_review::of_subject(target, &review).await,
        "selfsubjectrulesreviews" => {
            let status = rules_review::review(target, &review)?;
            // The response is a new object and repeats nothing of the request.
            review["metadata"] = json!({});
            review["spec"] = json!({});
            status
        }
        _ => return Err(Status::path_not_found()),
    };
    review["status"] = status;
    target.resource.kind.default(&mut review);
    Ok(response::made(target.context.accept, StatusCode::CREATED, &review))
}
