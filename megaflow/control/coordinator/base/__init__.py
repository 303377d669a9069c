"""What all parts of the coordinator know.

events            the controller's inputs, and the instructions that it returns
job_state         what one controller passes to the next
epoch_clock       the commands on the control stream, and when its time advances
roster            the workers of the job, and what each may receive
request_progress  requests about the membership, and how far they are
questions         questions that all members answer
"""
