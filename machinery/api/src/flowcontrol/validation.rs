//! The rules of FlowSchema and PriorityLevelConfiguration.

use corten_meta::field::FieldError;
use corten_meta::{Value, names};

use crate::check::{At, Errors};

const VERBS: &[&str] = &["create", "delete", "deletecollection", "get", "list", "patch", "proxy", "update", "watch"];

pub(super) fn validate_flow_schema(object: &Value) -> Errors {
    const MAX_PRECEDENCE: i64 = 10_000;
    let object = At::object(object);
    let name = object.get("metadata").get("name").text();
    let spec = object.get("spec");
    let mut errors = Errors::new();
    let precedence = spec.get("matchingPrecedence");
    match precedence.number().unwrap_or_default() {
        ..=0 => errors.push(precedence.invalid("must be a positive value")),
        1 if name != "exempt" => {
            errors.push(precedence.invalid("only the schema named 'exempt' may have matchingPrecedence 1"));
        }
        number if number > MAX_PRECEDENCE => {
            errors.push(precedence.invalid(format!("must not be greater than {MAX_PRECEDENCE}")));
        }
        _ => {}
    }
    spec.get("distinguisherMethod").when_object(&mut errors, |method, e| {
        if !["ByNamespace", "ByUser"].contains(&method.get("type").text()) {
            e.push(method.with(method.path.child("type")).not_supported(&["ByNamespace", "ByUser"]));
        }
    });
    let level = spec.get("priorityLevelConfiguration").get("name");
    if level.must_say(&mut errors, "must reference a priority level") {
        level.follows(&mut errors, names::dns1123_subdomain);
    }
    spec.get("rules").each(&mut errors, validate_rule);
    validate_conditions(&object.get("status"), &mut errors);
    errors
}

fn validate_rule(rule: &At<'_>, errors: &mut Errors) {
    if rule.get("subjects").must_say(errors, "subjects must contain at least one value") {
        rule.get("subjects").each(errors, validate_subject);
    }
    let resources = rule.get("resourceRules");
    let others = rule.get("nonResourceRules");
    if resources.is_empty() && others.is_empty() {
        errors.push(rule.required("at least one of resourceRules and nonResourceRules has to be non-empty"));
    }
    resources.each(errors, validate_resource_rule);
    others.each(errors, validate_other_rule);
}

fn validate_subject(subject: &At<'_>, errors: &mut Errors) {
    const KINDS: [(&str, &str); 3] = [("ServiceAccount", "serviceAccount"), ("User", "user"), ("Group", "group")];
    let kind = subject.get("kind");
    let Some((_, own)) = KINDS.iter().find(|(name, _)| *name == kind.text()) else {
        errors.push(kind.not_supported(&["Group", "ServiceAccount", "User"]));
        return;
    };
    let at = subject.get(own);
    if !at.is_object() {
        errors.push(at.required(&format!("{own} is required when subject kind is '{}'", kind.text())));
    } else if at.get("name").must(errors) && *own == "serviceAccount" && at.get("name").text() != "*" {
        at.get("name").follows(errors, names::dns1123_subdomain);
    }
    if at.is_object() && *own == "serviceAccount" {
        let namespace = at.get("namespace");
        if namespace.must_say(errors, "must specify namespace for service account") {
            namespace.follows(errors, names::dns1123_label);
        }
    }
    for (name, field) in KINDS.iter().filter(|(_, field)| field != own) {
        if subject.get(field).is_object() {
            let detail = format!("{field} is forbidden when subject kind is not '{name}'");
            errors.push(subject.get(field).forbidden(detail));
        }
    }
}

/// Validates that a list is not empty, and that `*` is alone. Reports whether to validate its items.
fn validate_list(list: &At<'_>, missing: &str, what: &str, errors: &mut Errors) -> bool {
    let wild = list.texts().any(|item| item == "*");
    if list.must_say(errors, missing) && wild && list.len() > 1 {
        errors.push(list.invalid(format!("if '*' is present, must not specify other {what}")));
    }
    !wild && !list.is_empty()
}

fn validate_verbs(rule: &At<'_>, errors: &mut Errors) {
    let verbs = rule.get("verbs");
    let each = validate_list(&verbs, "verbs must contain at least one value", "verbs", errors);
    if each && !verbs.texts().all(|verb| VERBS.contains(&verb)) {
        errors.push(verbs.not_supported(VERBS));
    }
}

fn validate_resource_rule(rule: &At<'_>, errors: &mut Errors) {
    validate_verbs(rule, errors);
    for (field, one, many) in [("apiGroups", "api group", "api groups"), ("resources", "resource", "resources")] {
        let missing = format!("resource rules must supply at least one {one}");
        validate_list(&rule.get(field), &missing, many, errors);
    }
    let namespaces = rule.get("namespaces");
    if namespaces.is_empty() && rule.get("clusterScope").is_true() {
        return;
    }
    let missing = "resource rules that are not cluster scoped must supply at least one namespace";
    if validate_list(&namespaces, missing, "namespaces", errors) {
        for namespace in namespaces.items() {
            let messages = names::dns1123_label(namespace.text()).into_iter();
            let intro = "each member of this list must be '*' or a DNS-1123 label; ";
            errors.extend(messages.map(|m| namespace.invalid(format!("{intro}{m}"))));
        }
    }
}

fn validate_other_rule(rule: &At<'_>, errors: &mut Errors) {
    validate_verbs(rule, errors);
    let urls = rule.get("nonResourceURLs");
    let missing = "nonResourceURLs must contain at least one value";
    if validate_list(&urls, missing, "non-resource URLs", errors) {
        for url in urls.items() {
            errors.extend(url_error(url.text()).map(|detail| url.invalid(detail)));
        }
    }
}

fn url_error(path: &str) -> Option<&'static str> {
    match path {
        "" => Some("must not be empty"),
        "/" => None,
        _ if !path.starts_with('/') => Some("must start with slash"),
        _ if path.contains(' ') => Some("must not contain white-space"),
        _ if path.contains("//") => Some("must not contain double slash"),
        _ => {
            let inner = path.strip_suffix("/*").unwrap_or(path);
            inner.contains('*').then_some("wildcard can only do suffix matching")
        }
    }
}

pub(super) fn validate_conditions(status: &At<'_>, errors: &mut Errors) {
    let mut seen = std::collections::BTreeSet::new();
    for kind in status.get("conditions").items().map(|condition| condition.get("type")) {
        if !seen.insert(kind.text()) {
            errors.push(kind.duplicate());
        }
        kind.must(errors);
    }
}

pub(super) fn validate_priority_level(object: &Value) -> Errors {
    let object = At::object(object);
    let name = object.get("metadata").get("name").text();
    let spec = object.get("spec");
    let kind = spec.get("type");
    let limited = spec.get("limited");
    let exempt = spec.get("exempt");
    let mut errors = Errors::new();
    if (name == "exempt") != (kind.text() == "Exempt") {
        errors.push(kind.invalid("must be 'Exempt' if and only if `name` is 'exempt'"));
    }
    match kind.text() {
        "Exempt" => {
            if limited.is_object() {
                errors.push(limited.forbidden("must be nil if the type is not Limited"));
            }
            validate_shares(&exempt, &mut errors);
        }
        "Limited" => {
            if exempt.is_object() {
                errors.push(exempt.forbidden("must be nil if the type is Limited"));
            }
            if limited.is_object() {
                validate_limited(&limited, &mut errors);
            } else {
                errors.push(limited.required("must not be empty when type is Limited"));
            }
        }
        _ => kind.must_be_one_of(&mut errors, &["Exempt", "Limited"]),
    }
    validate_conditions(&object.get("status"), &mut errors);
    errors
}

fn validate_shares(level: &At<'_>, errors: &mut Errors) {
    let shares = level.get("nominalConcurrencyShares");
    let lendable = level.get("lendablePercent");
    if shares.number().is_some_and(|n| n < 0) {
        errors.push(shares.invalid("must be a non-negative integer"));
    }
    lendable.within(errors, 0, 100);
}

fn validate_limited(level: &At<'_>, errors: &mut Errors) {
    let shares = level.get("nominalConcurrencyShares");
    if shares.number().is_some_and(|n| n < 0) {
        errors.push(shares.invalid("must be a non-negative integer"));
    }
    let response = level.get("limitResponse");
    let queuing = response.get("queuing");
    match response.get("type").text() {
        "Reject" if queuing.is_object() => {
            errors.push(queuing.forbidden("must be nil if limited.limitResponse.type is not Limited"));
        }
        "Reject" => {}
        "Queue" if !queuing.is_object() => {
            errors.push(queuing.required("must not be empty if limited.limitResponse.type is Limited"));
        }
        "Queue" => validate_queuing(&queuing, errors),
        _ => response.get("type").must_be_one_of(errors, &["Queue", "Reject"]),
    }
    level.get("lendablePercent").within(errors, 0, 100);
    let borrowing = level.get("borrowingLimitPercent");
    if borrowing.number().is_some_and(|n| n < 0) {
        errors.push(borrowing.invalid("if specified, must be a non-negative integer"));
    }
}

fn validate_queuing(queuing: &At<'_>, errors: &mut Errors) {
    const MAX_QUEUES: i64 = 10_000_000;
    const MAX_BITS: u32 = 60;
    let number = |field: &str| queuing.get(field).number().unwrap_or_default();
    let invalid = |field: &str, detail: String| FieldError::invalid(&queuing.path.child(field), number(field), detail);
    let queues = number("queues");
    let hand = number("handSize");
    if number("queueLengthLimit") <= 0 {
        errors.push(invalid("queueLengthLimit", "must be positive".to_string()));
    }
    if queues <= 0 {
        errors.push(invalid("queues", "must be positive".to_string()));
    } else if queues > MAX_QUEUES {
        errors.push(invalid("queues", format!("must not be greater than {MAX_QUEUES}")));
    }
    if hand <= 0 {
        errors.push(invalid("handSize", "must be positive".to_string()));
    } else if hand > queues {
        errors.push(invalid("handSize", format!("should not be greater than queues ({queues})")));
    } else if entropy_bits(queues, hand) > MAX_BITS {
        let detail = format!(
            "required entropy bits of deckSize {queues} and handSize {hand} should not be greater than {MAX_BITS}"
        );
        errors.push(invalid("handSize", detail));
    }
}

/// Returns the random bits that it takes to deal a hand from a deck.
fn entropy_bits(deck: i64, hand: i64) -> u32 {
    let bits: f64 = (0..hand).map(|dealt| ((deck - dealt) as f64).log2()).sum();
    bits.ceil() as u32
}
