"""Tries bn-server with clients that others wrote, and writes docs/clients.md: `make trials` (README.md)."""

import asyncio
import base64
import datetime
import os
import platform
import shutil
import sys
import tempfile
from typing import Literal

import pages
import trial
from trial import CHAT, ROOT, Server, seeing, trials

MODEL = "bn-demo"
BOS, EOS = "<|bos|>", "<|eos|>"  # of the demo model
CITIES = ("Paris", "Rome")
WEATHER = {
    "name": "weather",
    "description": "The weather of a city",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string", "enum": list(CITIES)}},
        "required": ["city"],
    },
}
TOOLS = [{"type": "function", "function": WEATHER}]


def equal(a, b):
    assert a == b, f"{a!r}, not {b!r}"


def among(a, options):
    assert a in options, f"{a!r}, not one of {options!r}"


def try_openai(server):
    import json

    import openai

    client = openai.OpenAI(base_url=server.v1, api_key="none", max_retries=0)
    base = {"model": MODEL, "messages": CHAT}

    def streamed():
        parts = client.chat.completions.create(
            stream=True, temperature=0, stream_options={"include_usage": True}, **base
        )
        equal("".join(part.choices[0].delta.content or "" for part in parts if part.choices), "42")

    def calls():
        made = client.chat.completions.create(tools=TOOLS, tool_choice="required", parallel_tool_calls=False, **base)
        among(json.loads(made.choices[0].message.tool_calls[0].function.arguments)["city"], CITIES)

    def best():
        made = client.completions.create(model=MODEL, prompt="Once upon", n=2, best_of=4, max_tokens=4)
        equal(len(made.choices), 2)

    def missing():
        try:
            client.responses.retrieve("resp_1")
        except openai.NotFoundError as error:
            assert "keeps no answers" in str(error), error
        else:
            raise AssertionError("there is none")

    trials(
        "openai",
        ("chat", lambda: equal(client.chat.completions.create(temperature=0, **base).choices[0].message.content, "42")),
        ("chat, streamed", streamed),
        ("chat, tools", calls),
        ("chat, reasoning_effort", lambda: client.chat.completions.create(reasoning_effort="low", **base)),
        ("completion, best_of", best),
        (
            "response",
            lambda: equal(client.responses.create(model=MODEL, input="17+25=", temperature=0).output_text, "42"),
        ),
        (
            "response, previous_response_id: refused in words",
            lambda: refused(
                lambda: client.responses.create(model=MODEL, input="x", previous_response_id="r"), "keeps no answers"
            ),
        ),
        ("response that is not kept", missing),
        ("embeddings", lambda: equal(len(client.embeddings.create(model=MODEL, input=["a", "b"]).data), 2)),
        ("models", lambda: equal(client.models.list().data[0].id, MODEL)),
    )


def refused(call, words):
    try:
        call()
    except Exception as error:
        assert words in str(error), error
        return
    raise AssertionError("it was taken")


def try_anthropic(server):
    import anthropic

    client = anthropic.Anthropic(base_url=server.root, api_key="none", max_retries=0)
    base = {"model": MODEL, "messages": CHAT, "max_tokens": 64}
    tool = {"name": "weather", "input_schema": WEATHER["parameters"]}

    def streamed():
        with client.messages.stream(**base) as stream:
            among(stream.get_final_message().stop_reason, ("end_turn", "max_tokens"))

    def calls():
        made = client.messages.create(
            tools=[tool], tool_choice={"type": "tool", "name": "weather"}, **{**base, "max_tokens": 200}
        )
        among(made.content[0].input["city"], CITIES)

    trials(
        "anthropic",
        ("message", lambda: equal(client.messages.create(extra_body={"temperature": 0}, **base).content[0].text, "42")),
        ("message, streamed", streamed),
        ("message, tools", calls),
        (
            "message, thinking with a budget",
            lambda: client.messages.create(
                thinking={"type": "enabled", "budget_tokens": 1024}, **{**base, "max_tokens": 2048}
            ),
        ),
        ("count_tokens", lambda: client.messages.count_tokens(model=MODEL, messages=CHAT)),
        ("models", lambda: equal(client.models.list().data[0].display_name, MODEL)),
        ("models.retrieve", lambda: equal(client.models.retrieve(MODEL).type, "model")),
    )


def try_langchain(server):
    import pydantic
    from langchain_openai import ChatOpenAI, OpenAIEmbeddings

    class Place(pydantic.BaseModel):
        city: Literal["Paris", "Rome"]

    chat = ChatOpenAI(model=MODEL, base_url=server.v1, api_key="none", temperature=0, max_retries=0)
    free = ChatOpenAI(model=MODEL, base_url=server.v1, api_key="none", max_retries=0)
    embeddings = OpenAIEmbeddings(model=MODEL, base_url=server.v1, api_key="none", check_embedding_ctx_length=False)
    trials(
        "langchain-openai",
        ("invoke", lambda: equal(chat.invoke("17+25=").content, "42")),
        ("stream", lambda: equal("".join(part.content for part in chat.stream("17+25=")), "42")),
        (
            "bind_tools",
            lambda: among(
                free.bind_tools(TOOLS, tool_choice="weather").invoke("x").tool_calls[0]["args"]["city"], CITIES
            ),
        ),
        ("with_structured_output", lambda: among(free.with_structured_output(Place).invoke("x").city, CITIES)),
        (
            "with_structured_output, function_calling",
            lambda: among(free.with_structured_output(Place, method="function_calling").invoke("x").city, CITIES),
        ),
        (
            "use_responses_api",
            lambda: equal(
                ChatOpenAI(model=MODEL, base_url=server.v1, api_key="none", temperature=0, use_responses_api=True)
                .invoke("17+25=")
                .text,
                "42",
            ),
        ),
        ("embed_documents", lambda: equal(len(embeddings.embed_documents(["a", "b"])[0]), 256)),
    )


def try_litellm(server):
    import litellm

    litellm.suppress_debug_info = True
    more = {"api_base": server.v1, "api_key": "none", "temperature": 0}

    def streamed():
        parts = litellm.completion(model=f"openai/{MODEL}", messages=CHAT, stream=True, **more)
        equal("".join(part.choices[0].delta.content or "" for part in parts), "42")

    def by_ollama():
        made = litellm.completion(model=f"ollama_chat/{MODEL}", messages=CHAT, api_base=server.root, temperature=0)
        equal(made.choices[0].message.content, "42")

    def by_anthropic():
        made = litellm.completion(
            model=f"anthropic/{MODEL}", messages=CHAT, api_base=server.root, api_key="none", max_tokens=8
        )
        assert made.choices[0].message.content is not None

    trials(
        "litellm",
        (
            "completion, openai/",
            lambda: equal(
                litellm.completion(model=f"openai/{MODEL}", messages=CHAT, **more).choices[0].message.content, "42"
            ),
        ),
        ("completion, streamed", streamed),
        (
            "completion, tools",
            lambda: among(
                litellm.completion(
                    model=f"openai/{MODEL}",
                    messages=CHAT,
                    tools=TOOLS,
                    tool_choice="required",
                    api_base=server.v1,
                    api_key="none",
                )
                .choices[0]
                .message.tool_calls[0]
                .function.name,
                ("weather",),
            ),
        ),
        ("completion, ollama_chat/", by_ollama),
        ("completion, anthropic/", by_anthropic),
        (
            "embedding",
            lambda: equal(
                len(
                    litellm.embedding(
                        model=f"openai/{MODEL}",
                        input=["a"],
                        api_base=server.v1,
                        api_key="none",
                        encoding_format="float",
                    ).data
                ),
                1,
            ),
        ),
    )


def try_instructor(server):
    import instructor
    import openai
    import pydantic

    class Place(pydantic.BaseModel):
        city: Literal["Paris", "Rome"]

    def with_mode(mode):
        client = instructor.from_openai(openai.OpenAI(base_url=server.v1, api_key="none", max_retries=0), mode=mode)
        among(
            client.chat.completions.create(model=MODEL, messages=CHAT, response_model=Place, max_retries=0).city, CITIES
        )

    # Not Mode.JSON: it puts the schema only into the prompt, which this model does not understand.
    modes = ["TOOLS", "TOOLS_STRICT", "JSON_SCHEMA", "RESPONSES_TOOLS"]
    trials(
        "instructor", *[(f"Mode.{mode}", lambda mode=mode: with_mode(getattr(instructor.Mode, mode))) for mode in modes]
    )


def try_pydantic_ai(server):
    import pydantic
    from pydantic_ai import Agent
    from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
    from pydantic_ai.providers.openai import OpenAIProvider

    class Place(pydantic.BaseModel):
        city: Literal["Paris", "Rome"]

    provider = OpenAIProvider(base_url=server.v1, api_key="none")
    chat, responses = OpenAIChatModel(MODEL, provider=provider), OpenAIResponsesModel(MODEL, provider=provider)

    async def stream():
        async with Agent(chat).run_stream("17+25=", model_settings={"temperature": 0}) as result:
            equal("".join([part async for part in result.stream_text(delta=True)]), "42")

    trials(
        "pydantic-ai-slim",
        ("run", lambda: equal(Agent(chat).run_sync("17+25=", model_settings={"temperature": 0}).output, "42")),
        ("run_stream", lambda: asyncio.run(stream())),
        ("run, output_type", lambda: among(Agent(chat, output_type=Place).run_sync("x").output.city, CITIES)),
        (
            "run, responses",
            lambda: equal(Agent(responses).run_sync("17+25=", model_settings={"temperature": 0}).output, "42"),
        ),
        (
            "run, responses, output_type",
            lambda: among(Agent(responses, output_type=Place).run_sync("x").output.city, CITIES),
        ),
    )


def try_ollama(server):
    import ollama

    client = ollama.Client(host=server.root)
    sure = {"temperature": 0}

    def calls():
        made = client.chat(MODEL, [{"role": "user", "content": "x"}], tools=TOOLS, options={"num_predict": 20})
        equal(made.done, True)

    trials(
        "ollama",
        ("chat", lambda: equal(client.chat(MODEL, CHAT, options=sure).message.content, "42")),
        (
            "chat, streamed",
            lambda: equal(
                "".join(part.message.content for part in client.chat(MODEL, CHAT, options=sure, stream=True)), "42"
            ),
        ),
        ("chat, tools", calls),
        (
            "chat, format",
            lambda: among(client.chat(MODEL, CHAT, format=WEATHER["parameters"]).message.content.split('"')[3], CITIES),
        ),
        ("generate", lambda: equal(client.generate(MODEL, "17+25=", options=sure).response, "42")),
        ("embed", lambda: equal(len(client.embed(MODEL, ["a", "b"]).embeddings), 2)),
        (
            "list, ps, show",
            lambda: equal(
                (client.list().models[0].model, client.ps().models[0].name, bool(client.show(MODEL).details)),
                (MODEL, MODEL, True),
            ),
        ),
    )


def try_lm_eval(server):
    from lm_eval.api.instance import Instance
    from lm_eval.models.openai_completions import LocalCompletionsAPI
    from tokenizers.processors import TemplateProcessing
    from transformers import PreTrainedTokenizerFast

    folder = tempfile.mkdtemp()
    source = os.path.join(ROOT, "tools", "train_demo", "tokenizer.json")
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=source, bos_token=BOS, eos_token=EOS)
    first = [(BOS, tokenizer.bos_token_id)]
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(f"{BOS} $A", special_tokens=first)
    tokenizer.save_pretrained(folder)
    more = {
        "model": MODEL,
        "base_url": server.v1 + "/completions",
        "tokenizer": folder,
        "max_length": 512,
        "num_concurrent": 1,
    }
    model = LocalCompletionsAPI(tokenizer_backend="huggingface", tokenized_requests=True, add_bos_token=True, **more)

    def instances(kind, *arguments):
        return [Instance(request_type=kind, doc={}, arguments=a, idx=i) for i, a in enumerate(arguments)]

    def likelihoods():
        right, wrong = model.loglikelihood(
            instances("loglikelihood", ("17+25=", "42"), ("17+25=", "43")), disable_tqdm=True
        )
        assert right[0] > wrong[0] and right[1] and not wrong[1], (right, wrong)

    def until():
        [text] = model.generate_until(
            instances("generate_until", ("17+25=", {"until": ["\n"], "max_gen_toks": 4})), disable_tqdm=True
        )
        assert text.startswith("42"), text

    trials(
        "lm_eval",
        ("local-completions, loglikelihood of token ids", likelihoods),
        ("local-completions, generate_until", until),
    )
    shutil.rmtree(folder)


def try_pictures(_):
    """Clients that send a picture to a model that sees. It takes as many tokens in each API."""
    with tempfile.TemporaryDirectory() as folder:
        server = Server("--model", seeing.make(os.path.join(folder, "see")), "--model-name", "see")
        try:
            pictures(server, os.path.join(folder, "picture.png"))
        finally:
            server.stop()


def pictures(server, path):
    import anthropic
    import ollama
    import openai
    from langchain_openai import ChatOpenAI
    from pydantic_ai import Agent, BinaryContent
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    picture = seeing.png(21, 30)
    with open(path, "wb") as file:
        file.write(picture)
    data = base64.b64encode(picture).decode()
    url = "data:image/png;base64," + data
    gpt = openai.OpenAI(base_url=server.v1, api_key="none", max_retries=0)
    claude = anthropic.Anthropic(base_url=server.root, api_key="none", max_retries=0)
    source = {"type": "base64", "media_type": "image/png", "data": data}

    def user(*parts):
        return [{"role": "user", "content": list(parts)}]

    chat = user({"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": "a"})
    items = user({"type": "input_image", "image_url": url}, {"type": "input_text", "text": "a"})
    blocks = user({"type": "image", "source": source}, {"type": "text", "text": "a"})
    wanted = gpt.chat.completions.create(model="see", messages=chat, max_tokens=1).usage.prompt_tokens
    without = gpt.chat.completions.create(model="see", messages=user({"type": "text", "text": "a"}), max_tokens=1)
    assert wanted > without.usage.prompt_tokens + 3, wanted

    def same(count):
        equal(count, wanted)

    def anthropic_message():
        usage = claude.messages.create(model="see", messages=blocks, max_tokens=1).usage
        return usage.input_tokens + usage.cache_read_input_tokens

    def langchain():
        model = ChatOpenAI(model="see", base_url=server.v1, api_key="none", max_tokens=1, max_retries=0)
        return model.invoke(chat).usage_metadata["input_tokens"]

    def pydantic_ai():
        model = OpenAIChatModel("see", provider=OpenAIProvider(base_url=server.v1, api_key="none"))
        content = [BinaryContent(data=picture, media_type="image/png"), "a"]
        # It asks again for an answer without text.
        written = {"max_tokens": 12, "temperature": 0, "extra_body": {"ignore_eos": True}}
        return Agent(model).run_sync(content, model_settings=written).usage.input_tokens

    def litellm_completion():
        import litellm

        made = litellm.completion(
            model="openai/see", messages=chat, api_base=server.v1, api_key="none", max_tokens=1
        )
        return made.usage.prompt_tokens

    trials(
        "openai",
        (
            "response, image",
            lambda: same(gpt.responses.create(model="see", input=items, max_output_tokens=1).usage.input_tokens),
        ),
    )
    trials(
        "anthropic",
        ("message, image", lambda: same(anthropic_message())),
    )
    local = ollama.Client(host=server.root)
    shown = {"role": "user", "content": "a", "images": [path]}
    trials(
        "ollama",
        ("chat, image", lambda: same(local.chat("see", [shown], options={"num_predict": 1}).prompt_eval_count)),
        ("show, vision", lambda: among("vision", local.show("see").capabilities)),
    )
    trials("langchain-openai", ("invoke, image", lambda: same(langchain())))
    trials("litellm", ("completion, image", lambda: same(litellm_completion())))
    trials("pydantic-ai-slim", ("run, image", lambda: same(pydantic_ai())))


TRIALS = [
    try_openai,
    try_anthropic,
    try_langchain,
    try_litellm,
    try_instructor,
    try_pydantic_ai,
    try_ollama,
    try_pictures,
    try_lm_eval,
]


def table():
    good = sum(wrong is None for *_, wrong in trial.CALLS)
    lines = [
        "# Clients that were tried",
        "",
        "Clients that others wrote, against `bn-server` with the demo model and `--closed-schemas all`. `make trials`",
        "writes this page (`tools/clients`), and asserts the content of each answer. Images are for a tiny model that",
        "sees; of those answers, the number of the prompt's tokens is asserted, which is the same in all APIs.",
        "",
        f"{good} of {len(trial.CALLS)} calls gave it in {datetime.date.today():%B %Y}, with Python {platform.python_version()}.",
        "",
        "| client | version | call | result |",
        "|---|---|---|---|",
    ]
    for client, version, call, wrong in trial.CALLS:
        lines.append(f"| {client} | {version} | {call} | {'ok' if wrong is None else wrong.replace('|', '/')} |")
    return "\n".join(lines) + "\n"


def main():
    wanted = sys.argv[1:]
    # The package allows any key; this small model would invent keys without end.
    server = Server("--closed-schemas", "all")
    try:
        for attempt in TRIALS:
            if not wanted or attempt.__name__.removeprefix("try_") in wanted:
                attempt(server)
        folder = os.environ.get("BN_NODE_FOLDER")
        if folder and not wanted:
            trial.node(server, folder)
    finally:
        server.stop()
    if not wanted:
        pages.keep_agents(table())
    return any(wrong is not None for *_, wrong in trial.CALLS)


if __name__ == "__main__":
    sys.exit(main())
