"""The page in headless Chromium: `browser.py FOLDER` leaves pictures there. Needs selenium, chromium and chromedriver."""
import os
import sys
import threading
import time

from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait
from support import Server


def start():
    options = webdriver.ChromeOptions()
    for argument in ["--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"]:
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    return webdriver.Chrome(options=options, service=webdriver.ChromeService("/usr/bin/chromedriver"))


def errors(browser):
    return [entry for entry in browser.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")]


def picture(browser, folder, name, width, height, dark=False):
    """Screenshot at a screen size, which may be narrower than Chromium's window can be, for phones."""
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500})
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]})
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width, "the page is too wide"
    browser.save_screenshot(os.path.join(folder, name + ".png"))


def load(server, ends):
    while not ends.is_set():
        server.post("/v1/completions", {"prompt": "Once upon a time", "max_tokens": 100, "ignore_eos": True})


def check_states(browser, wait):
    server = Server(wait=False, model="builtin:echo?load_ms=3000")
    browser.get(f"http://127.0.0.1:{server.port}/")
    state = browser.find_element(By.ID, "state")
    wait.until(lambda _: state.text == "loading")
    wait.until(lambda _: state.text == "serving")
    assert server.stop() == 0
    wait.until(lambda _: state.text == "no answer")
    errors(browser)  # the browser notes each answer that is not 200, and that there was none


def check_page(browser, wait, server, folder):
    browser.get(f"http://127.0.0.1:{server.port}/")
    numbers = lambda: [e.text for e in browser.find_elements(By.CSS_SELECTOR, ".card p span")]
    wait.until(lambda _: browser.find_element(By.ID, "state").text == "serving")
    ends = threading.Event()
    threads = [threading.Thread(target=load, args=(server, ends)) for _ in range(6)]
    for thread in threads:
        thread.start()
    try:
        wait.until(lambda _: numbers()[0] not in ("–", "0") and numbers()[2] != "0")
        before = numbers()
        wait.until(lambda _: numbers() != before)
        browser.find_element(By.ID, "text").send_keys("hello there\n")
        answer = lambda: "".join(e.text for e in browser.find_elements(By.CSS_SELECTOR, "#chat .assistant"))
        wait.until(lambda _: answer())
        wait.until(lambda _: browser.find_element(By.ID, "send").text == "Send")
        assert not browser.find_elements(By.CSS_SELECTOR, "#chat .error")
        time.sleep(float(os.environ.get("CHART_SECONDS", "5")))  # for the charts
        picture(browser, folder, "desktop", 1280, 800)
        picture(browser, folder, "desktop-dark", 1280, 800, dark=True)
        picture(browser, folder, "phone", 400, 800)
    finally:
        ends.set()
        for thread in threads:
            thread.join()
    found = errors(browser)
    assert not found, found


def main(folder):
    os.makedirs(folder, exist_ok=True)
    server, browser = Server(), start()
    try:
        wait = WebDriverWait(browser, 30)
        check_states(browser, wait)
        check_page(browser, wait, server, folder)
    finally:
        browser.quit()
        code = server.stop()
    assert code == 0
    print(f"the page works; pictures are in {folder}")


if __name__ == "__main__":
    main(sys.argv[1])
