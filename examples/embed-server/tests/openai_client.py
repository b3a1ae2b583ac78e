# SPDX-License-Identifier: MIT OR Apache-2.0
"""What a user of the stock client does: part, base URL, model, dimensions and longest sentence are the arguments."""

import base64
import math
import struct
import sys

import openai


def raises(kind, act):
    try:
        act()
    except kind as error:
        return error
    raise AssertionError(f"no {kind.__name__}")


def usual(client, model, dimensions, longest):
    # The client asks for base64 by itself, and decodes it.
    one = client.embeddings.create(model=model, input="hello world")
    assert one.object == "list" and one.model == model
    assert len(one.data) == 1 and one.data[0].index == 0 and one.data[0].object == "embedding"
    assert len(one.data[0].embedding) == dimensions
    assert math.isclose(sum(x * x for x in one.data[0].embedding), 1.0, rel_tol=1e-4)
    assert (one.usage.prompt_tokens, one.usage.total_tokens) == (4, 4)

    many = client.embeddings.create(model=model, input=["hello world", "", "hello"], user="me")
    assert [row.index for row in many.data] == [0, 1, 2]
    assert many.data[0].embedding == one.data[0].embedding
    assert many.data[1].embedding != many.data[2].embedding

    floats = client.embeddings.create(model=model, input=["hello world"], encoding_format="float")
    # Shortest decimals of f32, read as doubles: the same f32 again.
    single = [struct.unpack("<f", struct.pack("<f", x))[0] for x in floats.data[0].embedding]
    assert single == one.data[0].embedding, "float and base64 differ"
    text = client.embeddings.create(model=model, input="hello world", encoding_format="base64").data[0].embedding
    assert list(struct.unpack(f"<{dimensions}f", base64.b64decode(text))) == one.data[0].embedding

    tokens = client.embeddings.create(model=model, input=[[1, 3, 4, 2], [9]], dimensions=dimensions)
    assert tokens.data[0].embedding == one.data[0].embedding

    listed = client.models.list()
    assert [found.id for found in listed] == [model]
    assert client.models.retrieve(model).id == model
    raw = client.embeddings.with_raw_response.create(model=model, input="hello")
    assert raw.headers["x-request-id"].startswith("req-")

    wrong = raises(openai.NotFoundError, lambda: client.embeddings.create(model="other", input="hello"))
    assert wrong.code == "model_not_found" and wrong.param == "model", wrong
    raises(openai.NotFoundError, lambda: client.models.retrieve("other"))
    text = "hello " * longest
    long = raises(openai.BadRequestError, lambda: client.embeddings.create(model=model, input=text))
    assert long.code == "context_length_exceeded" and long.type == "invalid_request_error", long
    assert str(longest) in long.message and str(longest + 2) in long.message, long.message
    empty = raises(openai.BadRequestError, lambda: client.embeddings.create(model=model, input=[]))
    assert empty.param == "input", empty
    whole, few = (client.embeddings.create(model=model, input="a", dimensions=n).data[0].embedding for n in (dimensions, 2))
    length = math.hypot(*whole[:2])
    assert len(few) == 2 and all(abs(x - y / length) < 1e-5 for x, y in zip(few, whole)), few
    for n in (0, dimensions + 1):
        wrong = raises(openai.BadRequestError, lambda: client.embeddings.create(model=model, input="a", dimensions=n))
        assert wrong.param == "dimensions", wrong
    failed = raises(openai.InternalServerError, lambda: client.embeddings.create(model=model, input="fail"))
    assert failed.code == "device_failed" and failed.request_id, failed
    chat = [{"role": "user", "content": "hello"}]
    raises(openai.NotFoundError, lambda: client.chat.completions.create(model=model, messages=chat))


def full(client, model, dimensions, longest):
    error = raises(openai.RateLimitError, lambda: client.embeddings.create(model=model, input="hello"))
    assert error.code == "rate_limit_exceeded", error
    assert error.response.headers["retry-after"] == "1"


def main():
    part, base, model, dimensions, longest = sys.argv[1:]
    client = openai.OpenAI(base_url=base, api_key="unused", max_retries=0, timeout=60)
    {"usual": usual, "full": full}[part](client, model, int(dimensions), int(longest))
    print(f"{part}: ok")


main()
