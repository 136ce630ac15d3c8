//! May this user do that: `system:masters` always, then the Node authorizer, then RBAC.
//!
//! Every request passes here, in the pipeline; handlers do not ask again, except for the extra questions
//! that the API defines (impersonation, escalation, access reviews).

pub mod node;
pub mod rbac;

use corten_meta::{GroupResource, Status};

use crate::authentication::User;
use crate::request::RequestInfo;
use crate::server::Server;

/// What is asked for. Non-resource requests have a path and no resource.
#[derive(Clone, Debug)]
pub struct Attributes<'a> {
    pub user: &'a User,
    pub verb: &'a str,
    pub is_resource: bool,
    pub group: &'a str,
    pub resource: &'a str,
    pub subresource: &'a str,
    pub namespace: &'a str,
    pub name: &'a str,
    pub path: &'a str,
}

impl<'a> Attributes<'a> {
    /// A question about a resource, to be filled in.
    pub fn resource(user: &'a User, verb: &'a str) -> Attributes<'a> {
        Attributes {
            user,
            verb,
            is_resource: true,
            group: "",
            resource: "",
            subresource: "",
            namespace: "",
            name: "",
            path: "",
        }
    }

    pub fn of_request(user: &'a User, info: &'a RequestInfo) -> Attributes<'a> {
        Attributes {
            user,
            verb: &info.verb,
            is_resource: info.is_resource,
            group: &info.group,
            resource: &info.resource,
            subresource: &info.subresource,
            namespace: &info.namespace,
            name: &info.name,
            path: &info.path,
        }
    }
}

/// `Ok` with the reason why it is allowed, `Err` with the reason why it is not (often empty).
pub fn authorize(server: &Server, attributes: &Attributes<'_>) -> Result<String, String> {
    if attributes.user.is_in("system:masters") {
        return Ok(String::new());
    }
    let policy = server.rbac.policy();
    match node::authorize(server, &policy, attributes) {
        node::Decision::Allow => return Ok(String::new()),
        node::Decision::Deny(reason) => {
            return policy.authorize(attributes).map_err(|_| reason);
        }
        node::Decision::NoOpinion => {}
    }
    policy.authorize(attributes)
}

/// The 403 of a refused request.
pub fn forbidden(attributes: &Attributes<'_>, reason: &str) -> Status {
    let message = forbidden_message(attributes).replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    let message = if reason.is_empty() { message } else { format!("{message}: {reason}") };
    let resource = GroupResource { group: attributes.group.to_owned(), resource: attributes.resource.to_owned() };
    Status::forbidden(&resource, attributes.name, &message)
}

fn forbidden_message(a: &Attributes<'_>) -> String {
    let user = &a.user.name;
    if !a.is_resource {
        return format!("User {user:?} cannot {} path {:?}", a.verb, a.path);
    }
    let resource =
        if a.subresource.is_empty() { a.resource.to_owned() } else { format!("{}/{}", a.resource, a.subresource) };
    let scope = if a.namespace.is_empty() {
        "at the cluster scope".to_owned()
    } else {
        format!("in the namespace {:?}", a.namespace)
    };
    format!("User {user:?} cannot {} resource {resource:?} in API group {:?} {scope}", a.verb, a.group)
}
