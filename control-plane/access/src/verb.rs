//! The verbs of the API.

use std::fmt;

use http::Method;

/// The action of a request on a resource; for other paths, its method.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Verb {
    Get,
    List,
    Watch,
    Create,
    Update,
    Patch,
    Delete,
    DeleteCollection,
    /// A method that no resource takes.
    #[default]
    None,
    /// The method of another path, in lower case.
    Method(String),
}

impl Verb {
    /// Returns the verb of a request for a resource, by the method alone.
    pub fn of_resource(method: &Method) -> Verb {
        match *method {
            Method::POST => Verb::Create,
            Method::GET | Method::HEAD => Verb::Get,
            Method::PUT => Verb::Update,
            Method::PATCH => Verb::Patch,
            Method::DELETE => Verb::Delete,
            _ => Verb::None,
        }
    }

    /// Returns the verb of a request for any other path.
    pub fn of_path(method: &Method) -> Verb {
        match *method {
            Method::GET => Verb::Get,
            Method::PATCH => Verb::Patch,
            Method::DELETE => Verb::Delete,
            _ => Verb::Method(method.as_str().to_ascii_lowercase()),
        }
    }

    pub fn is_read(&self) -> bool {
        match self {
            Verb::Get | Verb::List | Verb::Watch => true,
            Verb::Method(method) => matches!(method.as_str(), "head" | "options"),
            _ => false,
        }
    }

    /// Returns the verb as RBAC rules and audit events have it.
    pub fn as_str(&self) -> &str {
        match self {
            Verb::Get => "get",
            Verb::List => "list",
            Verb::Watch => "watch",
            Verb::Create => "create",
            Verb::Update => "update",
            Verb::Patch => "patch",
            Verb::Delete => "delete",
            Verb::DeleteCollection => "deletecollection",
            Verb::None => "",
            Verb::Method(method) => method,
        }
    }
}

impl fmt::Display for Verb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
