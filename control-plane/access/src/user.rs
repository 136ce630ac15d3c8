//! Users: the identity of a caller.

use std::collections::BTreeMap;

/// The group of every user with a credential.
const AUTHENTICATED: &str = "system:authenticated";

/// An identity.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct User {
    pub name: String,
    pub uid: String,
    pub groups: Vec<String>,
    pub extra: BTreeMap<String, Vec<String>>,
}

impl User {
    /// Returns a user with a name and groups, and with `system:authenticated`.
    pub fn new(name: &str, groups: &[&str]) -> User {
        let groups = groups.iter().map(|g| (*g).to_owned()).collect();
        User { name: name.to_owned(), groups, ..User::default() }.authenticated()
    }

    /// Returns the user of the ServiceAccount `name` of `namespace`.
    pub fn service_account(namespace: &str, name: &str) -> User {
        let user = format!("system:serviceaccount:{namespace}:{name}");
        User::new(&user, &["system:serviceaccounts", &format!("system:serviceaccounts:{namespace}")])
    }

    /// Returns the user of requests without a credential.
    pub fn anonymous() -> User {
        User {
            name: "system:anonymous".to_owned(),
            groups: vec!["system:unauthenticated".to_owned()],
            ..User::default()
        }
    }

    /// Returns the user with the group of every user with a credential.
    #[must_use]
    pub fn authenticated(mut self) -> User {
        if !self.is_in(AUTHENTICATED) && self.name != "system:anonymous" {
            self.groups.push(AUTHENTICATED.to_owned());
        }
        self
    }

    pub fn is_in(&self, group: &str) -> bool {
        self.groups.iter().any(|g| g == group)
    }

    /// Returns the node's name, if this is a kubelet.
    pub fn node_name(&self) -> Option<&str> {
        self.name.strip_prefix("system:node:").filter(|_| self.is_in("system:nodes"))
    }

    /// Returns the user as reviews show it.
    pub fn to_value(&self) -> corten_meta::Value {
        let mut user = serde_json::json!({ "username": self.name, "groups": self.groups });
        if !self.uid.is_empty() {
            user["uid"] = self.uid.clone().into();
        }
        if !self.extra.is_empty() {
            user["extra"] = serde_json::json!(self.extra);
        }
        user
    }
}
