//! The paths of a group version: every operation of every kind, with its parameters, body and answers.

use corten_meta::Value;
use serde_json::{Map, json};

use super::parameters::{DELETE, DELETE_COLLECTION, LIST, LOG, PATCH, WRITE, parameters};
use crate::kind::{Kind, Role, Subresource};

pub(super) const META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1";

const OBJECT_MEDIA: &[&str] = &["application/json", "application/yaml", "application/vnd.kubernetes.protobuf"];
const LIST_MEDIA: &[&str] = &[
    "application/json",
    "application/yaml",
    "application/vnd.kubernetes.protobuf",
    "application/json;stream=watch",
    "application/vnd.kubernetes.protobuf;stream=watch",
];
const PATCH_MEDIA: &[&str] = &[
    "application/json-patch+json",
    "application/merge-patch+json",
    "application/strategic-merge-patch+json",
    "application/apply-patch+yaml",
];

pub(super) fn document_paths(group: &str, version: &str, kinds: &[&Kind]) -> Map<String, Value> {
    let prefix = if group.is_empty() { format!("/api/{version}") } else { format!("/apis/{group}/{version}") };
    let mut paths = Map::new();
    paths.insert(format!("{prefix}/"), resources_path(group, version));
    for kind in kinds {
        let mut builder = Builder { kind, prefix: &prefix, paths: &mut paths };
        builder.collection();
        builder.item();
        builder.subresources();
        builder.watches();
    }
    paths
}

fn resources_path(group: &str, version: &str) -> Value {
    let list = reference(&format!("{META}.APIResourceList"));
    json!({"get": {
        "description": "get available resources",
        "operationId": format!("get{}APIResources", title(group, version)),
        "tags": [tag(group, version)],
        "responses": responses(&[("200", "OK", &list)], OBJECT_MEDIA),
    }})
}

/// Writes the paths of one kind.
struct Builder<'a> {
    kind: &'a Kind,
    prefix: &'a str,
    paths: &'a mut Map<String, Value>,
}

/// An operation, apart from its path.
struct Operation<'a> {
    method: &'static str,
    action: &'static str,
    id: String,
    parameters: &'a [&'a str],
    body: Option<(Value, &'a [&'a str])>,
    answers: Value,
    gvk: (String, String, String),
}

impl Builder<'_> {
    fn base(&self) -> String {
        let namespace = if self.kind.namespaced { "/namespaces/{namespace}" } else { "" };
        format!("{}{namespace}/{}", self.prefix, self.kind.plural)
    }

    fn scope_parameters(&self) -> Vec<&'static str> {
        if self.kind.namespaced { vec!["namespace@"] } else { Vec::new() }
    }

    fn has(&self, verb: &str) -> bool {
        self.kind.verbs.contains(&verb)
    }

    fn own_gvk(&self) -> (String, String, String) {
        (self.kind.group.clone(), self.kind.version.clone(), self.kind.kind.clone())
    }

    /// Returns an operation id such as `readAppsV1NamespacedDeployment`.
    fn id(&self, verb: &str, middle: &str, tail: &str) -> String {
        let scope = if self.kind.namespaced { "Namespaced" } else { "" };
        format!("{verb}{}{middle}{scope}{}{tail}", title(&self.kind.group, &self.kind.version), words(&self.kind.kind))
    }

    fn object(&self) -> Value {
        reference(&self.kind.schema)
    }

    fn list(&self) -> Value {
        let package = self.kind.schema.rsplit_once('.').map_or("", |(package, _)| package);
        reference(&format!("{package}.{}", self.kind.list_kind))
    }

    /// Adds the list, create and delete-collection operations, and the list over all namespaces.
    fn collection(&mut self) {
        let create_only = self.kind.verbs == ["create"];
        let mut operations = Vec::new();
        if self.has("list") {
            let watchable = self.has("watch");
            operations.push(self.list_operation(self.id("list", "", ""), if watchable { LIST } else { &[] }));
        }
        if self.has("create") {
            let object = self.object();
            let answers = [("200", "OK", &object), ("201", "Created", &object), ("202", "Accepted", &object)];
            operations.push(Operation {
                method: "post",
                action: "post",
                id: self.id("create", "", ""),
                parameters: if create_only { &[] } else { WRITE },
                body: Some((object.clone(), &["*/*"])),
                answers: responses(&answers, OBJECT_MEDIA),
                gvk: self.own_gvk(),
            });
        }
        if self.has("deletecollection") {
            let status = reference(&format!("{META}.Status"));
            operations.push(Operation {
                method: "delete",
                action: "deletecollection",
                id: self.id("delete", "Collection", ""),
                parameters: DELETE_COLLECTION,
                body: Some((reference(&format!("{META}.DeleteOptions")), &["*/*"])),
                answers: responses(&[("200", "OK", &status)], OBJECT_MEDIA),
                gvk: self.own_gvk(),
            });
        }
        let mut shared = if create_only { WRITE.to_vec() } else { Vec::new() };
        shared.extend(self.scope_parameters());
        shared.push("pretty");
        if self.kind.namespaced || self.has("watch") || create_only {
            self.add(self.base(), &shared, operations);
        } else {
            let mut all = LIST.to_vec();
            all.push("pretty");
            self.add(self.base(), &all, operations);
        }
        if self.kind.namespaced && self.has("list") {
            let mut all = LIST.to_vec();
            all.push("pretty");
            let id = format!(
                "list{}{}ForAllNamespaces",
                title(&self.kind.group, &self.kind.version),
                capital(&words(&self.kind.kind))
            );
            let operation = self.list_operation(id, &[]);
            self.add(format!("{}/{}", self.prefix, self.kind.plural), &all, vec![operation]);
        }
    }

    fn list_operation<'p>(&self, id: String, parameters: &'p [&'p str]) -> Operation<'p> {
        Operation {
            method: "get",
            action: "list",
            id,
            parameters,
            body: None,
            answers: responses(&[("200", "OK", &self.list())], LIST_MEDIA),
            gvk: self.own_gvk(),
        }
    }

    /// Adds the read, replace, patch and delete operations of one object.
    fn item(&mut self) {
        let object = self.object();
        let mut operations = Vec::new();
        if self.has("get") {
            operations.push(self.read("", &object, self.own_gvk()));
        }
        if self.has("update") {
            operations.push(self.replace("", &object, WRITE, self.own_gvk()));
        }
        if self.has("patch") {
            operations.push(self.patch("", &object, self.own_gvk()));
        }
        if self.has("delete") {
            // Some kinds answer with the deleted object; those with finalizers in the spec are documented otherwise.
            let is_finalized = self.kind.subresources.iter().any(|sub| sub.role == Role::Finalize);
            let answer = match self.kind.rules.returns_deleted && !is_finalized {
                true => object.clone(),
                false => reference(&format!("{META}.Status")),
            };
            operations.push(Operation {
                method: "delete",
                action: "delete",
                id: self.id("delete", "", ""),
                parameters: DELETE,
                body: Some((reference(&format!("{META}.DeleteOptions")), &["*/*"])),
                answers: responses(&[("200", "OK", &answer), ("202", "Accepted", &answer)], OBJECT_MEDIA),
                gvk: self.own_gvk(),
            });
        }
        let shared = self.item_parameters(&["pretty"]);
        self.add(format!("{}/{{name}}", self.base()), &shared, operations);
    }

    fn item_parameters<'p>(&self, more: &[&'p str]) -> Vec<&'p str> {
        let mut all = vec!["name@"];
        all.extend(self.scope_parameters());
        all.extend(more);
        all
    }

    fn read(&self, tail: &str, body: &Value, gvk: (String, String, String)) -> Operation<'static> {
        Operation {
            method: "get",
            action: "get",
            id: self.id("read", "", tail),
            parameters: &[],
            body: None,
            answers: responses(&[("200", "OK", body)], OBJECT_MEDIA),
            gvk,
        }
    }

    fn replace(
        &self,
        tail: &str,
        body: &Value,
        parameters: &'static [&'static str],
        gvk: (String, String, String),
    ) -> Operation<'static> {
        Operation {
            method: "put",
            action: "put",
            id: self.id("replace", "", tail),
            parameters,
            body: Some((body.clone(), &["*/*"])),
            answers: responses(&[("200", "OK", body), ("201", "Created", body)], OBJECT_MEDIA),
            gvk,
        }
    }

    fn patch(&self, tail: &str, body: &Value, gvk: (String, String, String)) -> Operation<'static> {
        Operation {
            method: "patch",
            action: "patch",
            id: self.id("patch", "", tail),
            parameters: PATCH,
            body: Some((reference(&format!("{META}.Patch")), PATCH_MEDIA)),
            answers: responses(&[("200", "OK", body), ("201", "Created", body)], OBJECT_MEDIA),
            gvk,
        }
    }

    fn subresources(&mut self) {
        for sub in &self.kind.subresources {
            let path = format!("{}/{{name}}/{}", self.base(), sub.name);
            let tail = capital(sub.name);
            let gvk = self.sub_gvk(sub);
            let body = match sub.role {
                Role::Scale | Role::Eviction | Role::Token | Role::Binding => reference(&sub_schema(&gvk)),
                _ => self.object(),
            };
            match sub.role {
                Role::Log => self.add_log(path, gvk),
                Role::Exec | Role::Attach | Role::PortForward => self.add_connect(path, sub, &gvk),
                Role::Proxy => self.add_proxy(&path, &gvk),
                Role::Finalize => {
                    let operation = self.replace(&tail, &body, &[], gvk);
                    let shared = self.item_parameters(&["dryRun", "fieldManager", "fieldValidation", "pretty"]);
                    self.add(path, &shared, vec![operation]);
                }
                Role::Binding | Role::Eviction | Role::Token => {
                    let answers = [("200", "OK", &body), ("201", "Created", &body), ("202", "Accepted", &body)];
                    let operation = Operation {
                        method: "post",
                        action: "post",
                        id: self.id("create", "", &tail),
                        parameters: &[],
                        body: Some((body.clone(), &["*/*"])),
                        answers: responses(&answers, OBJECT_MEDIA),
                        gvk,
                    };
                    let shared = self.item_parameters(&["dryRun", "fieldManager", "fieldValidation", "pretty"]);
                    self.add(path, &shared, vec![operation]);
                }
                _ => {
                    let operations = vec![
                        self.read(&tail, &body, gvk.clone()),
                        self.patch(&tail, &body, gvk.clone()),
                        self.replace(&tail, &body, WRITE, gvk),
                    ];
                    let shared = self.item_parameters(&["pretty"]);
                    self.add(path, &shared, operations);
                }
            }
        }
    }

    fn sub_gvk(&self, sub: &Subresource) -> (String, String, String) {
        if sub.version.is_empty() {
            return (self.kind.group.clone(), self.kind.version.clone(), sub.kind.clone());
        }
        (sub.group.to_string(), sub.version.to_string(), sub.kind.clone())
    }

    fn add_log(&mut self, path: String, gvk: (String, String, String)) {
        let mut operation = self.read("Log", &json!({"type": "string"}), gvk);
        operation.answers["200"]["content"]["text/plain"] = json!({"schema": {"type": "string"}});
        let shared = self.item_parameters(LOG);
        self.add(path, &shared, vec![operation]);
    }

    fn add_connect(&mut self, path: String, sub: &Subresource, gvk: &(String, String, String)) {
        let parameters: &[&str] = match sub.role {
            Role::PortForward => &["ports:integer"],
            Role::Exec => &["command", "container", "stderr:boolean", "stdin:boolean", "stdout:boolean", "tty:boolean"],
            _ => &["container", "stderr:boolean", "stdin:boolean", "stdout:boolean", "tty:boolean"],
        };
        let tail = capital(sub.name);
        let operations = vec![self.connect("get", &tail, gvk), self.connect("post", &tail, gvk)];
        let shared = self.item_parameters(parameters);
        self.add(path, &shared, operations);
    }

    fn add_proxy(&mut self, path: &str, gvk: &(String, String, String)) {
        const METHODS: [&str; 7] = ["delete", "get", "head", "options", "patch", "post", "put"];
        for (suffix, tail, extra) in [("", "Proxy", None), ("/{path}", "ProxyWithPath", Some("path@"))] {
            let operations = METHODS.iter().map(|method| self.connect(method, tail, gvk)).collect();
            let mut shared = self.item_parameters(&["path"]);
            shared.extend(extra);
            self.add(format!("{path}{suffix}"), &shared, operations);
        }
    }

    fn connect(&self, method: &'static str, tail: &str, gvk: &(String, String, String)) -> Operation<'static> {
        Operation {
            method,
            action: "connect",
            id: self.id("connect", &capital(method), tail),
            parameters: &[],
            body: None,
            answers: responses(&[("200", "OK", &json!({"type": "string"}))], &["*/*"]),
            gvk: gvk.clone(),
        }
    }

    /// Adds the deprecated watch paths, which old clients still call.
    fn watches(&mut self) {
        if !self.has("watch") {
            return;
        }
        let namespaced = self.kind.namespaced;
        let base = self.base().replacen(self.prefix, &format!("{}/watch", self.prefix), 1);
        let mut all = LIST.to_vec();
        all.push("pretty");
        let mut scoped = all.clone();
        scoped.extend(self.scope_parameters());
        let mut item = scoped.clone();
        item.push("name@");
        if namespaced {
            let id = format!(
                "watch{}{}ListForAllNamespaces",
                title(&self.kind.group, &self.kind.version),
                words(&self.kind.kind)
            );
            let operation = self.watch("watchlist", id);
            self.add(format!("{}/watch/{}", self.prefix, self.kind.plural), &all, vec![operation]);
        }
        let operation = self.watch("watchlist", self.id("watch", "", "List"));
        self.add(base.clone(), &scoped, vec![operation]);
        let operation = self.watch("watch", self.id("watch", "", ""));
        self.add(format!("{base}/{{name}}"), &item, vec![operation]);
    }

    fn watch(&self, action: &'static str, id: String) -> Operation<'static> {
        let event = reference(&format!("{META}.WatchEvent"));
        Operation {
            method: "get",
            action,
            id,
            parameters: &[],
            body: None,
            answers: responses(&[("200", "OK", &event)], LIST_MEDIA),
            gvk: self.own_gvk(),
        }
    }

    /// Adds a path with the common parameters of its operations.
    fn add(&mut self, path: String, shared: &[&str], operations: Vec<Operation>) {
        if operations.is_empty() {
            return;
        }
        let mut item = Map::new();
        let mut shared = shared.to_vec();
        shared.sort_by_key(|name| (name.trim_end_matches('@'), !name.ends_with('@')));
        item.insert("parameters".to_string(), parameters(&shared));
        for operation in operations {
            let (group, version, kind) = operation.gvk;
            let mut out = json!({
                "description": says(self.kind, &path, operation.action, operation.method),
                "operationId": operation.id,
                "tags": [tag(&self.kind.group, &self.kind.version)],
                "responses": operation.answers,
                "x-kubernetes-action": operation.action,
                "x-kubernetes-group-version-kind": {"group": group, "version": version, "kind": kind},
            });
            if !operation.parameters.is_empty() {
                out["parameters"] = parameters(operation.parameters);
            }
            if let Some((schema, media)) = operation.body {
                out["requestBody"] = json!({ "content": content(&schema, media) });
                if operation.method != "delete" {
                    out["requestBody"]["required"] = true.into();
                }
            }
            item.insert(operation.method.to_string(), out);
        }
        self.paths.insert(path, Value::Object(item));
    }
}

/// Returns the description of an operation, in upstream's words.
fn says(kind: &Kind, path: &str, action: &str, method: &str) -> String {
    let name = kind.kind.as_str();
    let subresource = path.split_once("{name}/").and_then(|(_, rest)| rest.split('/').next());
    let part = subresource.map_or_else(String::new, |part| format!("{part} of "));
    let watched = "deprecated: use the 'watch' parameter with a list operation instead";
    match action {
        "list" if kind.verbs.contains(&"watch") => format!("list or watch objects of kind {name}"),
        "list" => format!("list objects of kind {name}"),
        "post" => format!("create {part}{}{name}", article(name)),
        "delete" => format!("delete {}{name}", article(name)),
        "deletecollection" => format!("delete collection of {name}"),
        "get" => format!("read {part}the specified {name}"),
        "put" => format!("replace {part}the specified {name}"),
        "patch" => format!("partially update {part}the specified {name}"),
        "watchlist" => format!("watch individual changes to a list of {name}. {watched}."),
        "watch" => {
            let one = "filtered to a single item with the 'fieldSelector' parameter";
            format!("watch changes to an object of kind {name}. {watched}, {one}.")
        }
        _ => format!("connect {} requests to {part}{name}", method.to_uppercase()),
    }
}

/// Returns the article of a noun; a plural has none.
fn article(noun: &str) -> &'static str {
    if noun.ends_with('s') && !noun.ends_with("ss") {
        ""
    } else if noun.starts_with(['A', 'E', 'I', 'O', 'U']) {
        "an "
    } else {
        "a "
    }
}

pub(super) fn reference(name: &str) -> Value {
    json!({"$ref": format!("#/components/schemas/{name}")})
}

/// Returns the type of a subresource's body.
fn sub_schema((group, version, kind): &(String, String, String)) -> String {
    let package = group.split('.').next().filter(|g| !g.is_empty()).unwrap_or("core");
    format!("io.k8s.api.{package}.{version}.{kind}")
}

pub(super) fn content(schema: &Value, media: &[&str]) -> Value {
    let all: Map<String, Value> = media.iter().map(|m| ((*m).to_string(), json!({ "schema": schema }))).collect();
    Value::Object(all)
}

fn responses(answers: &[(&str, &str, &Value)], media: &[&str]) -> Value {
    let mut out = json!({"401": {"description": "Unauthorized"}});
    for (code, description, schema) in answers {
        out[*code] = json!({"description": description, "content": content(schema, media)});
    }
    out
}

/// Returns `AppsV1`, `CoreV1`, `RbacAuthorizationV1`.
fn title(group: &str, version: &str) -> String {
    format!("{}{}", capital(&camel(group)), capital(&words(version)))
}

/// Returns `apps_v1`, `core_v1`, `rbacAuthorization_v1`.
fn tag(group: &str, version: &str) -> String {
    format!("{}_{}", camel(group), words(version))
}

pub(super) fn camel(group: &str) -> String {
    let group = if group.is_empty() { "core" } else { group };
    words(group.strip_suffix(".k8s.io").unwrap_or(group))
}

/// Returns a name without characters that no identifier has; the next character becomes a capital.
fn words(name: &str) -> String {
    let mut raises = false;
    let mut words = String::with_capacity(name.len());
    for (at, character) in name.char_indices() {
        let holds = character.is_alphabetic() || character == '_' || (at != 0 && character.is_ascii_digit());
        match holds {
            true if raises => words.extend(character.to_uppercase()),
            true => words.push(character),
            false => {}
        }
        raises = !holds;
    }
    words
}

pub(super) fn capital(text: &str) -> String {
    let mut characters = text.chars();
    characters.next().map_or_else(String::new, |first| first.to_uppercase().chain(characters).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_named_as_identifiers() {
        for (group, version, named, tagged) in [
            ("", "v1", "CoreV1", "core_v1"),
            ("rbac.authorization.k8s.io", "v1", "RbacAuthorizationV1", "rbacAuthorization_v1"),
            ("cert-manager.io", "v1alpha2", "CertManagerIoV1alpha2", "certManagerIo_v1alpha2"),
            ("a-b.c-d.example.com", "v1-x", "ABCDExampleComV1X", "aBCDExampleCom_v1X"),
            ("3scale.net", "v1", "ScaleNetV1", "ScaleNet_v1"),
        ] {
            assert_eq!((title(group, version), tag(group, version)), (named.to_owned(), tagged.to_owned()));
        }
    }
}
