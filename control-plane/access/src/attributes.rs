//! The attributes of a request that authorizers decide on.

use corten_meta::quote::quote;
use corten_meta::{GroupResource, Status};

use crate::User;

/// The attributes of a request. Non-resource requests have a path and no resource.
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
    pub version: &'a str,
    /// The selectors of a list, a watch or the deletion of a collection, unparsed.
    pub field_selector: &'a str,
    pub label_selector: &'a str,
}

impl<'a> Attributes<'a> {
    /// Makes the attributes of a resource request, to be filled in.
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
            version: "",
            field_selector: "",
            label_selector: "",
        }
    }
}

/// Returns the 403 error of a refused request.
pub fn forbidden(attributes: &Attributes<'_>, reason: &str) -> Status {
    let message = forbidden_message(attributes).replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    let message = if reason.is_empty() { message } else { format!("{message}: {reason}") };
    let resource = GroupResource { group: attributes.group.to_owned(), resource: attributes.resource.to_owned() };
    Status::forbidden(&resource, attributes.name, &message)
}

fn forbidden_message(a: &Attributes<'_>) -> String {
    let user = &a.user.name;
    if !a.is_resource {
        return format!("User {user} cannot {} path {}", a.verb, quote(&a.path), user = quote(user));
    }
    let resource =
        if a.subresource.is_empty() { a.resource.to_owned() } else { format!("{}/{}", a.resource, a.subresource) };
    let scope = if a.namespace.is_empty() {
        "at the cluster scope".to_owned()
    } else {
        format!("in the namespace {}", quote(&a.namespace))
    };
    format!(
        "User {user} cannot {} resource {resource} in API group {} {scope}",
        a.verb,
        quote(&a.group),
        user = quote(user),
        resource = quote(&resource)
    )
}
