"""Uploaded files are read in processes of their own, which end when their time is over."""

import asyncio
import io
import os
import zipfile

import psutil
import pytest

from hf_vanilla_transformer.data.foreign_files import ExchangeError, TooLargeError
from hf_vanilla_transformer.plugins.serving import file_process
from hf_vanilla_transformer.plugins.serving.file_process import FileProcesses

PARAGRAPH = "<w:p><w:r><w:t>w</w:t></w:r></w:p>"
SLOW = PARAGRAPH * 300_000


def word_file(content: str) -> bytes:
    space = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
    output = io.BytesIO()
    with zipfile.ZipFile(output, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("word/document.xml", f'<w:d xmlns:w="{space}">{content}</w:d>')
    return output.getvalue()


def test_texts_are_read_and_replaced_in_another_process():
    async def run():
        processes = FileProcesses(seconds=30)
        texts = await processes.texts_of("a\n\ud7ff".encode(), "A.TXT", 100)
        return texts, await processes.with_texts(b"a", "a.txt", ["\u00e4\n\n{}"])

    assert asyncio.run(run()) == (["a\n\ud7ff"], "\u00e4\n\n{}".encode())


def test_damage_of_a_file_is_no_lack_of_room():
    with pytest.raises(ExchangeError, match=r"a\.docx: damaged, encrypted") as error:
        asyncio.run(FileProcesses(seconds=30).texts_of(b"a", "a.docx", 10))
    assert not isinstance(error.value, TooLargeError)


def test_a_problem_of_a_file_is_one_there_as_well():
    with pytest.raises(TooLargeError, match=r"a\.docx: its text is larger than 10 bytes; split it\."):
        asyncio.run(FileProcesses(seconds=30).texts_of(word_file(PARAGRAPH), "a.docx", 10))


def test_a_file_that_takes_too_much_processor_time_is_refused():
    with pytest.raises(TooLargeError, match=r"a\.docx: damaged, or too large to be read in time; split it\."):
        asyncio.run(FileProcesses(seconds=1).texts_of(word_file(SLOW), "a.docx", 1 << 26))


def test_a_file_that_needs_too_much_memory_is_too_large_and_not_damaged():
    with pytest.raises(TooLargeError, match=r"a\.docx: .*too large to be read in"):
        asyncio.run(FileProcesses(seconds=60).texts_of(word_file("<w:p/>" * 9_000_000), "a.docx", 1 << 26))


def test_a_process_lets_others_go_first_before_it_imports_anything(tmp_path, monkeypatch):
    (tmp_path / "reader.py").write_text(
        'import os\nniceness = os.nice(0)\ndef main():\n    print(f\'{{"texts": ["{niceness}"]}}\')\n'
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(file_process, "__name__", "reader")
    (niceness,) = asyncio.run(FileProcesses(seconds=30).texts_of(b"a", "a.txt", 10))
    assert int(niceness) == min(19, os.nice(0) + 10)


def test_a_call_that_is_cancelled_ends_its_process():
    async def run():
        others = set(psutil.Process().children())
        call = asyncio.create_task(FileProcesses(seconds=30).texts_of(word_file(SLOW), "a.docx", 1 << 26))
        while not (own := set(psutil.Process().children()) - others):
            await asyncio.sleep(0.01)
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        return own

    (process,) = asyncio.run(run())
    assert not process.is_running()


def test_no_more_than_two_run_at_a_time():
    async def run():
        processes = FileProcesses(seconds=30)
        others = set(psutil.Process().children())
        calls = [asyncio.create_task(processes.texts_of(b"a", "a.txt", 100)) for _ in range(6)]
        most = 0
        while not all(call.done() for call in calls):
            running = [child for child in set(psutil.Process().children()) - others if child.is_running()]
            most = max(most, len(running))
            await asyncio.sleep(0.01)
        assert all(call.result() == ["a"] for call in calls)
        return most

    # one may not have been taken from the list of processes when the next starts
    assert asyncio.run(run()) <= 3
