"""Uses the console as a person would: signs in, looks, edits, breaks and mends an application.

Arguments: the one-time link, a file with an administrator's token, a file with a reader's token.
Needs Playwright and a Chromium, whose path is in CHROMIUM. Every step waits for what it wants to see.
With the path of axe-core's axe.min.js in AXE, every page is checked for serious findings.
"""

import os
import re
import sys

from playwright.sync_api import expect, sync_playwright

LINK, ADMIN, READER = sys.argv[1:4]
BASE = LINK.split("#")[0]
SECONDS = 1000
expect.set_options(timeout=30 * SECONDS)

DEPLOYMENT = """apiVersion: apps/v1
kind: Deployment
metadata:
  name: made
  namespace: default
spec:
  replicas: 3
  selector:
    matchLabels:
      app: made
  template:
    metadata:
      labels:
        app: made
    spec:
      containers:
      - name: main
        image: test.local/busybox:1
        command: [sh, -c, 'echo "hello <script>alert(1)</script> from $HOSTNAME";
          printf "\\033[31mred\\033[0m \\033]0;title\\007 \\302\\233 \\342\\200\\256 end\\n"; sleep 3600']
      terminationGracePeriodSeconds: 0
"""


HOSTILE = """apiVersion: v1
kind: ConfigMap
metadata:
  name: hostile
  namespace: default
  annotations:
    note: "<script>alert(1)</script>\\e[31m"
data:
  page.html: "<img src=x onerror=alert(2)>\\e[31m"
"""


class Problems:
    """What must not happen on any page: errors of scripts, dialogs, requests to other hosts."""

    def __init__(self):
        self.found = []

    def watch(self, page):
        page.set_default_timeout(30 * SECONDS)
        page.on("pageerror", lambda error: self.found.append(f"script: {error}"))
        page.on("dialog", lambda dialog: self.found.append(f"dialog: {dialog.message}"))
        page.on("request", self.request)

    def request(self, request):
        if not request.url.startswith(BASE.split("/console/")[0]) and not request.url.startswith("blob:"):
            self.found.append(f"request to {request.url}")


def sign_in(page, file):
    page.goto(BASE)
    with open(file) as token:
        page.fill("#token", token.read())
    page.get_by_role("button", name="Sign in", exact=True).click()
    expect(page.locator("nav a").first).to_be_visible()


def go(page, address):
    page.evaluate("address => { location.hash = address }", address)


def button(page, name):
    return page.locator("main").get_by_role("button", name=name, exact=True)


def links_and_tokens(browser, problems):
    page = browser.new_page()
    problems.watch(page)
    page.goto(LINK)
    expect(page.locator(".card strong").first).to_be_visible()
    expect(page.locator("header .user")).to_contain_text("system:serviceaccount:kube-system:corten-console")
    assert "code=" not in page.url, page.url
    again = browser.new_page()
    again.goto(LINK)
    expect(again.get_by_role("alert")).to_contain_text("was used before")
    again.fill("#token", "not-a-token")
    again.get_by_role("button", name="Sign in", exact=True).click()
    expect(again.get_by_role("alert")).to_contain_text("does not know this token")
    page.close()
    again.close()


def an_application(page):
    go(page, "#/create")
    page.fill(".editor", DEPLOYMENT)
    button(page, "Check").click()
    expect(page.locator(".output")).to_contain_text("is valid")
    button(page, "Create").click()
    expect(page.locator(".output")).to_contain_text("is applied")

    page.locator("h1").first.click()
    page.keyboard.press("g")
    page.keyboard.press("p")
    expect(page.locator(".row", has_text="made-").filter(has_text="Running")).to_have_count(3)
    page.keyboard.press("/")
    page.keyboard.type("app=made")
    expect(page.locator(".row")).to_have_count(3)

    go(page, "#/object/deployments.apps/default/made/logs")
    expect(page.locator(".log div", has_text="hello <script>alert(1)</script> from")).to_have_count(3)
    # Colours are left out; other control characters, and those that turn the text, are shown.
    expect(page.locator(".log div", has_text="red \u241b]0;title\u2407 <U+009B> <U+202E> end")).to_have_count(3)

    go(page, "#/object/deployments.apps/default/made")
    button(page, "Scale").click()
    page.fill("dialog input", "2")
    page.keyboard.press("Enter")
    expect(page.locator(".facts").first).to_contain_text("2 ready of 2")


def editing(page):
    go(page, "#/object/deployments.apps/default/made/yaml")
    editor = page.locator(".editor")
    expect(editor).to_have_value(re.compile("replicas: 2"))
    editor.fill(editor.input_value().replace("image: test.local/busybox:1", "image: nowhere.invalid/none:1"))
    button(page, "Show the difference").click()
    expect(page.locator(".diff .added")).to_contain_text("nowhere.invalid/none:1")
    expect(page.locator(".diff .removed")).to_contain_text("test.local/busybox:1")
    button(page, "Apply").click()
    take = page.get_by_role("button", name="Take them")
    expect(take.or_(page.locator(".notice", has_text="is applied")).first).to_be_visible()
    if take.is_visible():
        take.click()
    expect(page.locator(".notice", has_text="is applied").first).to_be_visible()

    go(page, "#/object/deployments.apps/default/made/why")
    expect(page.locator(".finding h2").first).to_contain_text("nowhere.invalid/none:1")

    go(page, "#/object/deployments.apps/default/made/trace")
    lanes = page.locator("table.lanes")
    expect(lanes).to_contain_text("ReplicaSet/made-")
    expect(lanes.locator("td:nth-child(4)", has_text="bound to node").first).to_be_visible()

    go(page, "#/object/deployments.apps/default/made")
    button(page, "Roll back").click()
    page.locator(".choices button").first.click()
    expect(page.locator(".notice", has_text="goes back").first).to_be_visible()
    go(page, "#/object/deployments.apps/default/made/yaml")
    expect(page.locator(".editor")).to_have_value(re.compile("busybox"))


def hostile_strings(page):
    go(page, "#/create")
    page.fill(".editor", HOSTILE)
    button(page, "Create").click()
    expect(page.locator(".output")).to_contain_text("is applied")
    go(page, "#/object/configmaps/default/hostile/data")
    expect(page.locator("main")).to_contain_text("<img src=x onerror=alert(2)>")
    expect(page.locator("main img")).to_have_count(0)
    go(page, "#/object/configmaps/default/hostile/yaml")
    expect(page.locator(".editor")).to_have_value(re.compile("<script>alert"))


def accessibility(page):
    if "AXE" not in os.environ:
        return
    with open(os.environ["AXE"]) as file:
        page.evaluate(file.read())
    found = []
    for address, wanted in [
        ("#/", ".card strong"),
        ("#/map", ".box"),
        ("#/nodes", ".node"),
        ("#/access", "table.access"),
        ("#/create", ".editor"),
        ("#/list/pods", ".row"),
        ("#/list/events", ".row"),
        ("#/object/deployments.apps/default/made", ".facts"),
        ("#/object/deployments.apps/default/made/yaml", ".editor"),
        ("#/object/deployments.apps/default/made/logs", ".log div"),
        ("#/object/deployments.apps/default/made/trace", ".lanes"),
        ("#/object/configmaps/default/hostile/data", ".value"),
    ]:
        go(page, address)
        expect(page.locator(wanted).first).to_be_visible()
        violations = page.evaluate("axe.run(document).then(found => found.violations)")
        serious = [one for one in violations if one["impact"] in ("serious", "critical")]
        found += [(address, one["id"], [node["html"][:200] for node in one["nodes"]]) for one in serious]
    assert not found, found


def terminal(page):
    go(page, "#/list/pods")
    page.locator(".row", has_text="made-").filter(has_text="Running").first.click()
    page.get_by_role("tab", name="Terminal").click()
    screen = page.locator(".terminal")
    expect(screen).to_contain_text("#")
    screen.focus()
    page.keyboard.type("echo $((6*7))-done\n")
    expect(screen).to_contain_text("42-done")
    before = page.locator(".terminal > div").count()
    page.set_viewport_size({"width": 1000, "height": 420})
    page.wait_for_function("before => document.querySelectorAll('.terminal > div').length !== before", arg=before)
    page.keyboard.type("stty size\n")
    expect(screen).to_contain_text(re.compile(r"\b\d+ \d+\b"))
    page.set_viewport_size({"width": 1280, "height": 800})


def other_pages(page):
    for address, wanted in [
        ("#/", "Overview"),
        ("#/map", "Map"),
        ("#/nodes", "Nodes"),
        ("#/access", "What may I do?"),
        ("#/list/events", "Event"),
        ("#/list/customresourcedefinitions.apiextensions.k8s.io", "CustomResourceDefinition"),
    ]:
        go(page, address)
        expect(page.locator("h1").first).to_contain_text(wanted)
    page.locator("h1").first.click()
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_contain_text("Search the rows")
    page.keyboard.press("Escape")
    page.set_viewport_size({"width": 390, "height": 800})
    go(page, "#/list/pods")
    page.get_by_role("button", name="Menu").click()
    expect(page.get_by_role("link", name="Deployments", exact=True)).to_be_visible()
    page.set_viewport_size({"width": 1280, "height": 800})


def a_reader(browser, problems):
    page = browser.new_page(color_scheme="dark")
    problems.watch(page)
    sign_in(page, READER)
    go(page, "#/object/deployments.apps/default/made")
    expect(page.locator(".facts").first).to_contain_text("Created")
    expect(page.locator("main .buttons button")).to_have_count(0)
    go(page, "#/object/deployments.apps/default/made/yaml")
    expect(page.get_by_text("You may read this object, not change it.")).to_be_visible()
    go(page, "#/list/secrets")
    expect(page.get_by_role("status").first).to_contain_text("forbidden")
    page.close()


def deletion(page):
    go(page, "#/object/deployments.apps/default/made")
    button(page, "Delete").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    go(page, "#/list/pods")
    expect(page.locator(".row", has_text="made-")).to_have_count(0)


def main():
    problems = Problems()
    with sync_playwright() as playwright:
        arguments = ["--no-sandbox", "--disable-gpu"]
        browser = playwright.chromium.launch(executable_path=os.environ["CHROMIUM"], args=arguments)
        links_and_tokens(browser, problems)
        page = browser.new_page(viewport={"width": 1280, "height": 800})
        problems.watch(page)
        sign_in(page, ADMIN)
        for step in [an_application, editing, hostile_strings, terminal, other_pages, accessibility]:
            step(page)
            print(step.__name__, flush=True)
        a_reader(browser, problems)
        deletion(page)
        browser.close()
    assert not problems.found, problems.found
    print("all steps passed")


main()
