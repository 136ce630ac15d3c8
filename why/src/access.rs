//! Requests that are denied: by authorization, with the rules that come near, or by admission webhooks that do not
//! answer.

use corten_client::{Error, ListOptions, Resource};
use corten_meta::Value;
use serde_json::json;

use crate::objects::{self, items, text};
use crate::{Finding, Sources, service};

const RBAC: &str = "rbac.authorization.k8s.io";
const ADMISSION: &str = "admissionregistration.k8s.io";
/// The roles that a cluster has for people, the least first. That of administrators is not suggested.
const ROLES: [&str; 3] = ["view", "edit", "admin"];
/// The most bindings and rules that are shown as evidence.
const MAX_SHOWN: usize = 8;

/// A request, as the user names it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Access {
    pub verb: String,
    pub target: Target,
    /// The user that sends the request; empty for the user who asks.
    pub user: String,
    pub groups: Vec<String>,
}

/// The object of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    Path(String),
    Resource { group: String, plural: String, subresource: String, namespace: String, name: String },
}

impl Default for Target {
    fn default() -> Target {
        Target::Path("/".to_owned())
    }
}

/// Explains whether a request is allowed, and by which rule or webhook.
pub async fn explain(sources: Sources<'_>, access: &Access) -> Result<Vec<Finding>, Error> {
    let answer = sources.objects.review(&access.review()).await?;
    let reason = text(&answer, "/status/reason");
    if answer.pointer("/status/allowed").and_then(Value::as_bool) == Some(true) {
        let allowed = Finding::new(format!("Authorization allows {} to {}.", access.who(), access.what()));
        let mut findings = webhooks(sources, access).await;
        findings.push(allowed.because(reason));
        return Ok(findings);
    }
    Ok(vec![denied(sources, access, &answer).await])
}

impl Access {
    fn who(&self) -> String {
        if self.user.is_empty() { "you".to_owned() } else { format!("user {}", self.user) }
    }

    fn what(&self) -> String {
        match &self.target {
            Target::Path(path) => format!("{} {path}", self.verb),
            Target::Resource { group, plural, subresource, namespace, name } => {
                let mut what = format!("{} {plural}", self.verb);
                if !subresource.is_empty() {
                    what.push_str(&format!("/{subresource}"));
                }
                if !group.is_empty() {
                    what.push_str(&format!(".{group}"));
                }
                if !name.is_empty() {
                    what.push_str(&format!(" {name}"));
                }
                match namespace.is_empty() {
                    true => what + " in all of the cluster",
                    false => format!("{what} in namespace {namespace}"),
                }
            }
        }
    }

    /// Returns the SubjectAccessReview, or the SelfSubjectAccessReview of the user who asks.
    fn review(&self) -> Value {
        let mut spec = match &self.target {
            Target::Path(path) => json!({"nonResourceAttributes": {"path": path, "verb": self.verb}}),
            Target::Resource { group, plural, subresource, namespace, name } => json!({"resourceAttributes": {
                "verb": self.verb, "group": group, "resource": plural, "subresource": subresource,
                "namespace": namespace, "name": name,
            }}),
        };
        let mut kind = "SelfSubjectAccessReview";
        if !self.user.is_empty() {
            kind = "SubjectAccessReview";
            spec["user"] = json!(self.user);
            spec["groups"] = json!(self.all_groups());
        }
        json!({"apiVersion": "authorization.k8s.io/v1", "kind": kind, "spec": spec})
    }

    /// Returns the groups of the user, with those that every user or ServiceAccount has.
    fn all_groups(&self) -> Vec<String> {
        let mut groups = self.groups.clone();
        if let Some((namespace, _)) = self.service_account() {
            groups.push("system:serviceaccounts".to_owned());
            groups.push(format!("system:serviceaccounts:{namespace}"));
        }
        groups.push("system:authenticated".to_owned());
        groups
    }

    fn service_account(&self) -> Option<(&str, &str)> {
        self.user.strip_prefix("system:serviceaccount:")?.split_once(':')
    }

    /// Reports whether a subject of a binding is the user or one of its groups.
    fn is(&self, subject: &Value, binding_namespace: &str) -> bool {
        let name = text(subject, "/name");
        match text(subject, "/kind") {
            "User" => name == self.user,
            "Group" => self.all_groups().iter().any(|group| group == name),
            "ServiceAccount" => {
                let namespace = match text(subject, "/namespace") {
                    "" => binding_namespace,
                    namespace => namespace,
                };
                self.service_account() == Some((namespace, name))
            }
            _ => false,
        }
    }
}

/// A role by its kind, namespace and name, as a binding refers to it.
struct Granted {
    /// The role and the binding, as messages show them.
    shown: String,
    /// Whether the role does not exist.
    is_missing: bool,
    rules: Vec<Value>,
}

/// Explains a denial by the user's bindings, and the rules of these that come near.
async fn denied(sources: Sources<'_>, access: &Access, answer: &Value) -> Finding {
    let mut finding = Finding::new(format!("No rule allows {} to {}.", access.who(), access.what()))
        .because(text(answer, "/status/reason"))
        .because(text(answer, "/status/evaluationError"));
    let Target::Resource { namespace, .. } = &access.target else {
        return finding.help("kubectl get clusterroles -o yaml | grep -B4 nonResourceURLs");
    };
    if access.user.is_empty() {
        let place = if namespace.is_empty() { String::new() } else { format!(" -n {namespace}") };
        return finding.help(format!("kubectl auth can-i --list{place}"));
    }
    match granted(sources, access, namespace).await {
        Err(_) => finding = finding.because("the rules of others are not shown to you: you may not list roles"),
        Ok(all) if all.is_empty() => {
            finding = finding.because(format!("no binding that counts here names {}", access.user));
        }
        Ok(all) => {
            let near = all.iter().filter_map(|one| {
                let missed: Vec<String> = one.rules.iter().filter_map(|rule| access.misses(rule)).collect();
                (!missed.is_empty() || one.is_missing).then(|| format!("{}: {}", one.shown, missed.join("; ")))
            });
            let near: Vec<String> = near.take(MAX_SHOWN).collect();
            if near.is_empty() {
                let count = all.len();
                finding = finding.because(format!("{count} bindings name {}, and none has a rule for it", access.user));
            }
            for one in near {
                finding = finding.because(one.trim_end_matches(": "));
            }
        }
    }
    finding.help(access.remedy(&role_that_allows(sources, access).await))
}

/// Returns the roles that bindings give to the user, in a namespace and in the whole cluster.
async fn granted(sources: Sources<'_>, access: &Access, namespace: &str) -> Result<Vec<Granted>, Error> {
    let list = |plural: &'static str, namespaced: bool| async move {
        let resource = Resource::new(RBAC, "v1", plural, namespaced);
        let place = if namespaced { namespace } else { "" };
        sources.objects.list(&resource, place, ListOptions::default()).await
    };
    let mut bindings = list("clusterrolebindings", false).await?;
    let mut roles = Vec::new();
    if !namespace.is_empty() {
        bindings.extend(list("rolebindings", true).await?);
        roles = list("roles", true).await?;
    }
    let cluster_roles = list("clusterroles", false).await?;
    let mut granted = Vec::new();
    for binding in &bindings {
        let place = corten_meta::namespace(binding);
        if !items(binding, "/subjects").any(|subject| access.is(subject, place)) {
            continue;
        }
        let kind = text(binding, "/roleRef/kind");
        let name = text(binding, "/roleRef/name");
        let among = if kind == "ClusterRole" { &cluster_roles } else { &roles };
        let role = among.iter().find(|role| corten_meta::name(role) == name);
        let by = if place.is_empty() { "ClusterRoleBinding" } else { "RoleBinding" };
        let missing = if role.is_none() { ", which does not exist" } else { "" };
        granted.push(Granted {
            shown: format!("{kind} {name}{missing} (by {by} {})", corten_meta::name(binding)),
            is_missing: role.is_none(),
            rules: role.map(|role| items(role, "/rules").cloned().collect()).unwrap_or_default(),
        });
    }
    Ok(granted)
}

/// Reports whether a list of a rule has a value, or all.
fn has(rule: &Value, field: &str, value: &str) -> bool {
    items(rule, field).any(|one| one == "*" || one == value)
}

fn joined(rule: &Value, field: &str) -> String {
    items(rule, field).filter_map(Value::as_str).collect::<Vec<_>>().join(", ")
}

impl Access {
    /// Reports whether a rule is about the resource of the request.
    fn is_about(&self, rule: &Value) -> bool {
        let Target::Resource { group, plural, subresource, .. } = &self.target else { return false };
        let full = match subresource.is_empty() {
            true => plural.clone(),
            false => format!("{plural}/{subresource}"),
        };
        let of_all = format!("*/{subresource}");
        let is_of_all = !subresource.is_empty() && items(rule, "/resources").any(|one| one == of_all.as_str());
        has(rule, "/apiGroups", group) && (has(rule, "/resources", &full) || is_of_all)
    }

    fn allows(&self, rule: &Value) -> bool {
        self.is_about(rule) && has(rule, "/verbs", &self.verb) && self.is_named(rule)
    }

    /// Reports whether a rule is about every name, or that of the request.
    fn is_named(&self, rule: &Value) -> bool {
        let Target::Resource { name, .. } = &self.target else { return false };
        let mut names = items(rule, "/resourceNames").peekable();
        names.peek().is_none() || names.any(|one| one == name.as_str())
    }

    /// Returns the reason why a rule that comes near does not allow the request.
    fn misses(&self, rule: &Value) -> Option<String> {
        let Target::Resource { group, plural, subresource, .. } = &self.target else { return None };
        if self.is_about(rule) {
            return Some(match has(rule, "/verbs", &self.verb) {
                false => format!("allows {} on them, and not {}", joined(rule, "/verbs"), self.verb),
                true => format!("allows it for the names {} only", joined(rule, "/resourceNames")),
            });
        }
        let is_named_alike = items(rule, "/resources").any(|one| one == plural.as_str());
        if is_named_alike && has(rule, "/apiGroups", group) {
            return Some(format!("has a rule for {plural}, and not for {plural}/{subresource}"));
        }
        is_named_alike.then(|| {
            let groups = items(rule, "/apiGroups").map(|one| match one.as_str() {
                Some("") => "\"\"",
                Some(group) => group,
                None => "",
            });
            format!("has a rule for {plural} of the API groups {}", groups.collect::<Vec<_>>().join(", "))
        })
    }

    /// Returns the command that grants the request.
    fn remedy(&self, role: &Option<String>) -> String {
        let Target::Resource { group, plural, subresource, namespace, .. } = &self.target else {
            return String::new();
        };
        let subject = match self.service_account() {
            Some((namespace, name)) => format!("--serviceaccount={namespace}:{name}"),
            None => format!("--user={}", self.user),
        };
        let (kind, place) = match namespace.is_empty() {
            true => ("clusterrolebinding", String::new()),
            false => ("rolebinding", format!(" -n {namespace}")),
        };
        let Some(role) = role else {
            let mut resource = plural.clone();
            if !group.is_empty() {
                resource = format!("{resource}.{group}");
            }
            if !subresource.is_empty() {
                resource = format!("{resource}/{subresource}");
            }
            let verb = &self.verb;
            let role = format!("{verb}-{plural}");
            return format!(
                "kubectl create clusterrole {role} --verb={verb} --resource={resource}; \
                 kubectl create {kind} {role}{place} --clusterrole={role} {subject}"
            );
        };
        format!("kubectl create {kind} NAME{place} --clusterrole={role} {subject}")
    }
}

/// Returns the least of the cluster's own roles that allows the request.
async fn role_that_allows(sources: Sources<'_>, access: &Access) -> Option<String> {
    let roles = Resource::new(RBAC, "v1", "clusterroles", false);
    for name in ROLES {
        let role = sources.objects.get(&roles, "", name).await.ok().flatten()?;
        if items(&role, "/rules").any(|rule| access.allows(rule)) {
            return Some(name.to_owned());
        }
    }
    None
}

/// Explains webhooks that see the request, and whose server does not answer.
async fn webhooks(sources: Sources<'_>, access: &Access) -> Vec<Finding> {
    let mut findings = Vec::new();
    for plural in ["mutatingwebhookconfigurations", "validatingwebhookconfigurations"] {
        let resource = Resource::new(ADMISSION, "v1", plural, false);
        let listed = sources.objects.list(&resource, "", ListOptions::default()).await.unwrap_or_default();
        for configuration in &listed {
            for webhook in items(configuration, "/webhooks").filter(|webhook| access.is_seen_by(webhook)) {
                findings.extend(unanswered(sources, configuration, webhook).await);
            }
        }
    }
    findings
}

impl Access {
    /// Reports whether a webhook gets such a request.
    fn is_seen_by(&self, webhook: &Value) -> bool {
        let Target::Resource { group, plural, subresource, .. } = &self.target else { return false };
        let operation = match self.verb.as_str() {
            "create" => "CREATE",
            "update" | "patch" => "UPDATE",
            "delete" | "deletecollection" => "DELETE",
            "connect" => "CONNECT",
            _ => return false,
        };
        let full = match subresource.is_empty() {
            true => plural.clone(),
            false => format!("{plural}/{subresource}"),
        };
        items(webhook, "/rules").any(|rule| {
            let is_resource = items(rule, "/resources").filter_map(Value::as_str).any(|one| {
                one == full || one == "*/*" || one == "*" && subresource.is_empty() || one == format!("{plural}/*")
            });
            has(rule, "/operations", operation) && has(rule, "/apiGroups", group) && is_resource
        })
    }
}

/// Explains a webhook whose Service has no endpoint; a policy of Fail then refuses every request.
async fn unanswered(sources: Sources<'_>, configuration: &Value, webhook: &Value) -> Option<Finding> {
    let name = text(webhook, "/name");
    let namespace = text(webhook, "/clientConfig/service/namespace");
    let server = text(webhook, "/clientConfig/service/name");
    if server.is_empty() || text(webhook, "/failurePolicy") == "Ignore" {
        return None;
    }
    let kind = text(configuration, "/kind");
    let kind = if kind.is_empty() { "webhook configuration" } else { kind };
    let finding = Finding::new(format!("The webhook {name} refuses it as long as its server does not answer."))
        .because(format!("{kind} {}, failurePolicy Fail", corten_meta::name(configuration)));
    let found = sources.objects.get(&objects::services(), namespace, server).await.ok()?;
    let Some(found) = found else {
        return Some(
            finding
                .because(format!("its Service {namespace}/{server} does not exist"))
                .help(format!("kubectl get services -n {namespace}")),
        );
    };
    service::endpoints(sources, &found).await?;
    Some(
        finding
            .because(format!("its Service {namespace}/{server} has no ready endpoint"))
            .help(format!("corten why -n {namespace} service/{server}")),
    )
}

/// Explains a request by its audit event.
pub fn explain_event(event: &Value) -> Vec<Finding> {
    let user = text(event, "/user/username");
    let verb = text(event, "/verb");
    let uri = text(event, "/requestURI");
    let code = event.pointer("/responseStatus/code").and_then(Value::as_i64).unwrap_or_default();
    let message = text(event, "/responseStatus/message");
    let annotation = |key: &str| event["annotations"][key].as_str().unwrap_or_default();
    let decision = annotation("authorization.k8s.io/decision");
    let shown = match text(event, "/requestReceivedTimestamp") {
        "" => format!("user {user}: {verb} {uri}"),
        time => format!("user {user}: {verb} {uri} at {time}"),
    };
    let finding = match (decision, code) {
        ("forbid", _) => Finding::new("Authorization refused it: no rule allows it.")
            .because(annotation("authorization.k8s.io/reason"))
            .help(can_i(event)),
        (_, 401) => Finding::new("The server did not know the user: its credential is wrong or expired."),
        (_, code) if code < 400 => return Vec::new(),
        _ if message.contains("admission webhook") => Finding::new("An admission webhook refused it."),
        _ if message.contains("ValidatingAdmissionPolicy") => Finding::new("An admission policy refused it."),
        (_, 403) => Finding::new("Admission refused it."),
        (_, code) => Finding::new(format!("It was answered with {code} {}.", text(event, "/responseStatus/reason"))),
    };
    vec![finding.because(shown).because(message)]
}

/// Returns the command that explains the request's authorization.
fn can_i(event: &Value) -> String {
    let reference = |field: &str| text(event, &format!("/objectRef/{field}")).to_owned();
    let mut resource = reference("resource");
    if resource.is_empty() {
        return format!(
            "corten why can-i {} {} --as {}",
            text(event, "/verb"),
            text(event, "/requestURI"),
            text(event, "/user/username")
        );
    }
    if !reference("apiGroup").is_empty() {
        resource = format!("{resource}.{}", reference("apiGroup"));
    }
    let place = match reference("namespace").as_str() {
        "" => String::new(),
        namespace => format!(" -n {namespace}"),
    };
    format!("corten why can-i {} {resource}{place} --as {}", text(event, "/verb"), text(event, "/user/username"))
}
